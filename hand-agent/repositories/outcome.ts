/** What became of a repository that a hand was given. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { RepositoryOutcomeSchema } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";

export type RepositoryFailure = "authentication" | "forbidden" | "not_found" | "checkout" | "clone";

/** As the contract has it; also how it stands in the agent's file of hands. */
export type RepositoryOutcome = Omit<MessageInitShape<typeof RepositoryOutcomeSchema>, "$typeName"> & {
  readonly url: string;
  readonly path: string;
};

const MAX_MESSAGE_CHARS = 1_500;

/** Why one is not there. `part` is one of those of FailureOrigin. */
export class RepositoryProblem extends Error {
  override readonly name = "RepositoryProblem";
  readonly failure: RepositoryFailure;
  readonly part: string;
  /** It may be otherwise in a moment. */
  readonly mayPass: boolean;

  constructor(failure: RepositoryFailure, part: string, message: string, mayPass = false) {
    super(message.trim().slice(-MAX_MESSAGE_CHARS));
    this.failure = failure;
    this.part = part;
    this.mayPass = mayPass;
  }
}

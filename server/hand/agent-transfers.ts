/** Copies whose agent is connected here: brings together who wants a copy and the stream that the agent opens for it. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import { abortable } from "../../kit/abortable.ts";
import { within } from "../../kit/clock.ts";
import { invalidField, notFound, TendonError } from "../../kit/errors.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import type {
  StartTransfer,
  StreamTransferRequest,
  StreamTransferResponseSchema,
} from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { OpenTransfer, TransferPart } from "../ports/transfers.ts";
import type { AgentLink } from "./agent-link.ts";
import type { HandDeps } from "./deps.ts";

type Response = MessageInitShape<typeof StreamTransferResponseSchema>;

/** More than these are refused: each has buffers of its own. */
const MAX_OPEN = 512;

export class AgentTransfers {
  private readonly deps: Pick<HandDeps, "clock" | "timing">;
  private readonly open = new Map<string, AgentTransfer>();

  constructor(deps: Pick<HandDeps, "clock" | "timing">) {
    this.deps = deps;
  }

  get size(): number {
    return this.open.size;
  }

  /** Has the agent open the copy's stream. UNAVAILABLE when it does not, LIMIT_EXCEEDED when too many are open. */
  async start(
    link: Pick<AgentLink, "handAgentId" | "post">,
    command: StartTransfer,
    signal: AbortSignal,
  ): Promise<OpenTransfer> {
    if (this.open.size >= MAX_OPEN) {
      throw new TendonError("LIMIT_EXCEEDED", `this server has ${MAX_OPEN} copies running; try again later`);
    }
    const { transferId } = command;
    const transfer = new AgentTransfer(link.handAgentId, () => this.open.delete(transferId));
    this.open.set(transferId, transfer);
    const leave = () => transfer.fail(signal.reason);
    signal.addEventListener("abort", leave, { once: true });
    try {
      signal.throwIfAborted();
      if (!link.post({ case: "startTransfer", value: command })) throw unavailable("its connection ended");
      const { clock, timing } = this.deps;
      await within(clock, timing.greetingTimeoutMs, transfer.opened, () =>
        unavailable(`it did not open the copy within ${timing.greetingTimeoutMs} ms`),
      );
      return transfer;
    } catch (error) {
      transfer.fail(error);
      throw error;
    } finally {
      signal.removeEventListener("abort", leave);
    }
  }

  /** The stream that an agent has opened. */
  async *serve(
    requests: AsyncIterable<StreamTransferRequest>,
    handAgentId: string,
    context: RpcContext,
  ): AsyncGenerator<Response> {
    const iterator = requests[Symbol.asyncIterator]();
    const { clock, timing } = this.deps;
    const first = await within(
      clock,
      timing.greetingTimeoutMs,
      iterator.next(),
      () => new TendonError("DEADLINE_EXCEEDED", "the stream was not opened"),
    );
    const kind = first.done ? undefined : first.value.kind;
    if (kind?.case !== "transferId") throw invalidField("transfer_id", "must be the first message");
    const transfer = this.open.get(kind.value);
    // One that belongs to another agent is as unknown as one that nobody asked for.
    if (transfer?.handAgentId !== handAgentId || transfer.isOpened) throw notFound("transfer", kind.value);
    yield* transfer.serve(iterator, context.signal);
  }
}

class AgentTransfer implements OpenTransfer {
  readonly handAgentId: string;
  readonly opened: Promise<void>;
  isOpened = false;
  private readonly forget: () => void;
  private readonly ending = new AbortController();
  private requests: AsyncIterator<StreamTransferRequest> | undefined;
  private markOpened!: () => void;
  private giveInputs!: (inputs: AsyncIterator<TransferPart>) => void;
  private readonly inputs: Promise<AsyncIterator<TransferPart>>;

  constructor(handAgentId: string, forget: () => void) {
    this.handAgentId = handAgentId;
    this.forget = forget;
    this.opened = new Promise((resolve, reject) => {
      this.markOpened = resolve;
      this.ending.signal.addEventListener("abort", () => reject(this.ending.signal.reason), { once: true });
    });
    this.opened.catch(() => {});
    this.inputs = new Promise((resolve) => {
      this.giveInputs = resolve;
    });
  }

  /** The agent's side: what it is sent. Ends when the copy has ended, in whatever way. */
  async *serve(
    requests: AsyncIterator<StreamTransferRequest>,
    callSignal: AbortSignal,
  ): AsyncGenerator<Response> {
    this.requests = requests;
    this.isOpened = true;
    this.markOpened();
    const broke = () => this.fail(unavailable("its stream broke off"));
    callSignal.addEventListener("abort", broke, { once: true });
    if (callSignal.aborted) broke();
    try {
      const inputs = await this.orEnded(this.inputs);
      for (;;) {
        const next = await this.orEnded(inputs.next());
        if (next.done) break;
        yield { kind: next.value } as Response;
      }
      await this.orEnded(new Promise<never>(() => {}));
    } catch (error) {
      if (!this.ending.signal.aborted) this.fail(error);
      if (this.ending.signal.reason !== FINISHED) throw this.ending.signal.reason;
    } finally {
      callSignal.removeEventListener("abort", broke);
      this.fail(unavailable("its stream ended"));
    }
  }

  async *run(inputs: AsyncIterable<TransferPart>): AsyncGenerator<TransferPart> {
    const from = inputs[Symbol.asyncIterator]();
    this.giveInputs(from);
    try {
      for (;;) {
        const next = await this.orEnded(this.requests!.next());
        if (next.done) throw unavailable("it ended the copy without saying how");
        const { kind } = next.value;
        if (kind.case === "end") {
          this.fail(FINISHED);
          yield kind;
          return;
        }
        if (kind.case !== "chunk") throw invalidField("transfer_id", "only the first message may be one");
        yield kind;
      }
    } finally {
      this.close();
      // Whoever gives them may hold something; an iterator that is being read is not waited for.
      void from.return?.().catch(() => {});
    }
  }

  close(): void {
    this.fail(new TendonError("CANCELLED", "the copy was given up"));
  }

  /** Only the first end counts. */
  fail(reason: unknown): void {
    this.forget();
    this.ending.abort(reason);
  }

  private orEnded<T>(promise: Promise<T>): Promise<T> {
    promise.catch(() => {});
    return abortable(promise, this.ending.signal);
  }
}

/** The agent has said how the copy ended. */
const FINISHED = new TendonError("CANCELLED", "the copy has ended");

function unavailable(why: string): TendonError {
  return new TendonError("UNAVAILABLE", `the copy could not go on at the hand agent: ${why}; try again`);
}

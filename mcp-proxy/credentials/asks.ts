/** Answers what the server asks about credentials. */
import { create, fromJsonString, type MessageInitShape, toJsonString } from "@bufbuild/protobuf";
import { messageOf, TendonError } from "../../kit/errors.ts";
import type { Logger } from "../../kit/log.ts";
import type {
  AskAuthorities,
  AskReseal,
  AskValidate,
  ProxyAnswerSchema,
} from "../../proto/gen/tendon/v1/proxy_service_pb.js";
import {
  type CredentialUse,
  CredentialUseSchema,
  ValidateCredentialResponseSchema,
} from "../../proto/gen/tendon/v1/vault_service_pb.js";
import type { Authorities } from "../egress/authorities.ts";
import { mergedSecret, type Opened, type Opener } from "./opener.ts";
import { CredentialRefusal } from "./refusal.ts";
import { type TrialDeps, trialHost, tryCredential } from "./trial.ts";
import type { UseJournal } from "./use-journal.ts";

export interface AsksDeps extends TrialDeps {
  readonly opener: Opener;
  readonly journal: UseJournal;
  /** What sandboxes trust. */
  readonly authorities: Pick<Authorities, "certificatesOf">;
  /** A credential keeps its destination until its secret is entered again. */
  readonly destinationsAreFixed: boolean;
  readonly log: Logger;
}

export type Answer = Omit<
  Exclude<MessageInitShape<typeof ProxyAnswerSchema>, { $typeName: string }>,
  "askId"
>;

export class CredentialAsks {
  private readonly deps: AsksDeps;

  constructor(deps: AsksDeps) {
    this.deps = deps;
  }

  /** To the newest key; with another use or parts of the secret, where these are given; or a signing secret. Does not reject. */
  reseal(ask: AskReseal): Promise<Answer> {
    return this.answered(ask, async () => {
      const { opener } = this.deps;
      if (ask.webhookEndpointId !== "") {
        const whose = { workspaceId: ask.workspaceId, endpointId: ask.webhookEndpointId };
        const secret = await opener.openSigningSecret(ask.sealed, whose);
        return { resealed: await opener.sealSigningSecret(whose, secret) };
      }
      let opened = await opener.open(ask.sealed, ask);
      if (ask.use !== "") opened = this.redirected(opened, parseUse(ask.use));
      if (ask.secret !== "") {
        const part = await opener.open(ask.secret, ask);
        opened = { ...opened, secret: mergedSecret(opened.secret, part.secret) };
      }
      return { resealed: await opener.seal(opened) };
    });
  }

  /** Does not reject. */
  validate(ask: AskValidate): Promise<Answer> {
    return this.answered(ask, async () => {
      const { journal, opener } = this.deps;
      journal.requireRoom();
      const opened = await opener.open(ask.sealed, ask);
      const result = await tryCredential(this.deps, { opened, version: ask.version });
      const { credentialId } = ask;
      const outcome = result.httpStatus > 0 ? String(result.httpStatus) : "not_tried";
      journal.record({
        credentialId,
        sessionId: "",
        action: "validate",
        host: trialHost(opened),
        result: outcome,
      });
      const message = create(ValidateCredentialResponseSchema, result);
      return { validation: toJsonString(ValidateCredentialResponseSchema, message) };
    });
  }

  /** Of a workspace. Does not reject. */
  async authorities({ workspaceId }: Pick<AskAuthorities, "workspaceId">): Promise<Answer> {
    try {
      return { authorities: await this.deps.authorities.certificatesOf(workspaceId) };
    } catch (error) {
      this.deps.log.error({ workspaceId, error: messageOf(error) }, "authorities could not be made");
      return { reason: "UNAVAILABLE", message: "the proxy failed; try again" };
    }
  }

  private redirected(opened: Opened, use: CredentialUse): Opened {
    if (use.kind.case !== opened.use.kind.case) {
      throw new CredentialRefusal("INVALID_FIELD", "the new use is of another kind than the sealed one");
    }
    const goesElsewhere = JSON.stringify(placesOf(use)) !== JSON.stringify(placesOf(opened.use));
    if (goesElsewhere && this.deps.destinationsAreFixed) {
      throw new CredentialRefusal(
        "DESTINATION_FIXED",
        "in this installation a credential gets another destination only together with its secret (TENDON_PROXY_DESTINATIONS)",
      );
    }
    return { ...opened, use };
  }

  private async answered(ask: AskReseal | AskValidate, run: () => Promise<Answer>): Promise<Answer> {
    try {
      return await run();
    } catch (error) {
      if (error instanceof CredentialRefusal) {
        const { credentialId } = ask;
        const result = error.reason.toLowerCase();
        this.deps.journal.record({ credentialId, sessionId: "", action: "refuse", host: "", result });
        return { reason: error.reason, message: error.message };
      }
      if (error instanceof TendonError)
        return { reason: "UNAVAILABLE", message: "the server could not be asked; try again" };
      this.deps.log.error(
        { credentialId: ask.credentialId, error: messageOf(error) },
        "a question was not answered",
      );
      return { reason: "UNAVAILABLE", message: "the proxy failed; try again" };
    }
  }
}

function parseUse(text: string): CredentialUse {
  try {
    return fromJsonString(CredentialUseSchema, text, { ignoreUnknownFields: true });
  } catch {
    throw new CredentialRefusal("INVALID_FIELD", "the new use cannot be read");
  }
}

/** All to whom a secret may be shown, and as what. */
function placesOf({ kind }: CredentialUse): readonly string[] {
  switch (kind.case) {
    case "staticBearer":
      return [kind.value.serverUrl];
    case "header":
      return [kind.value.serverUrl, kind.value.headerName];
    case "oauth":
      return [kind.value.serverUrl, kind.value.tokenEndpoint];
    case "git":
      return [kind.value.url];
    case "environmentVariable":
      return [...kind.value.allowedHosts].sort();
    case undefined:
      return [];
  }
}

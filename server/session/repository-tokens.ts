/** Tokens that come with repositories: sealed for the own vault of the session or deployment, and kept nowhere else. */
import { create } from "@bufbuild/protobuf";
import { invalidField } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import { destinationOf } from "../../kit/vault/destination.ts";
import type { SessionResourceInput } from "../../proto/gen/tendon/v1/session_pb.js";
import {
  type CredentialUse,
  CredentialUseSchema,
  PlainSecretSchema,
} from "../../proto/gen/tendon/v1/vault_service_pb.js";
import type { SecretSealing } from "../ports/secret-sealing.ts";
import type { OwnCredential, OwnVault } from "../store/session-vaults.ts";

export interface RepositoryToken {
  readonly token: string;
  /** Empty for the usual one. */
  readonly userName: string;
}

interface GivenToken extends RepositoryToken {
  readonly use: CredentialUse;
  readonly destination: string;
}

/** Those that these resources bring; undefined for none. `vaultId`: one that is there already. INVALID_FIELD, NOT_CONFIGURED. */
export async function ownVaultOf(
  sealing: SecretSealing,
  resources: readonly SessionResourceInput[],
  {
    workspaceId,
    actor,
    vaultId = newId("vault"),
  }: { readonly workspaceId: string; readonly actor: string; readonly vaultId?: string | undefined },
): Promise<OwnVault | undefined> {
  const given = givenTokens(resources);
  if (given.length === 0) return undefined;
  const credentials: OwnCredential[] = [];
  for (const token of given) {
    const whose = { workspaceId, vaultId, credentialId: newId("credential") };
    credentials.push(await ownCredential(sealing, token, token, whose));
  }
  return { vaultId, credentials, actor };
}

export async function ownCredential(
  sealing: SecretSealing,
  { use, destination }: ReturnType<typeof placeOf>,
  { token, userName }: RepositoryToken,
  whose: Parameters<SecretSealing["seal"]>[0],
): Promise<OwnCredential> {
  const secret = create(PlainSecretSchema, { value: token, userName });
  const sealed = await sealing.seal(whose, use, secret);
  return { credentialId: whose.credentialId, use, destination, sealed };
}

/** What a token for this repository is for, and is found by. */
export function placeOf(url: string): { use: CredentialUse; destination: string } {
  const use = create(CredentialUseSchema, { kind: { case: "git", value: { url } } });
  const destination = destinationOf(use);
  if (destination === undefined) throw new Error(`a session has a repository whose URL is none: ${url}`);
  return { use, destination };
}

/** No error repeats a part of it. INVALID_FIELD. */
export function checkToken({ token, userName }: RepositoryToken, field = ""): void {
  if (!/^[\x21-\x7e]*$/.test(token))
    throw invalidField(`${field}authorization_token`, "must be printable ASCII, without spaces");
  if (/[\p{Cc}:]/u.test(userName))
    throw invalidField(`${field}user_name`, "must hold no colon and no control character");
}

/** One for each repository, however often it is given. Their URLs are ones. */
function givenTokens(resources: readonly SessionResourceInput[]): GivenToken[] {
  const given = new Map<string, GivenToken>();
  for (const [index, { kind }] of resources.entries()) {
    if (kind.case !== "gitRepository") continue;
    const field = `resources[${index}].git_repository.`;
    const { authorizationToken: token, userName, url } = kind.value;
    if (token === "") {
      if (userName !== "") throw invalidField(`${field}user_name`, "is for a token, and there is none");
      continue;
    }
    checkToken({ token, userName }, field);
    const place = placeOf(url.replace(/\/+$/, ""));
    const other = given.get(place.destination);
    if (other !== undefined && (other.token !== token || other.userName !== userName))
      throw invalidField(`${field}authorization_token`, "another resource gives this repository another one");
    given.set(place.destination, { ...place, token, userName });
  }
  return [...given.values()];
}

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import type { GitRepositoryInputSchema } from "../../proto/gen/tendon/v1/git_pb.js";
import { SessionResourceInputSchema } from "../../proto/gen/tendon/v1/session_pb.js";
import type { PlainSecret } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import type { SealedFor } from "../ports/secret-sealing.ts";
import { checkToken, ownVaultOf } from "./repository-tokens.ts";

type Repository = Extract<MessageInitShape<typeof GitRepositoryInputSchema>, { $typeName?: never }>;

const WHO = { workspaceId: "wrkspc_1", actor: "client apikey_1" };

async function vaultOf(...repositories: Repository[]) {
  const sealed: { whose: SealedFor; secret: PlainSecret }[] = [];
  const sealing = {
    async seal(whose: SealedFor, _use: unknown, secret: PlainSecret) {
      sealed.push({ whose, secret });
      return { text: `sealed ${sealed.length}`, keyId: "key" };
    },
  };
  const resources = repositories.map((value) =>
    create(SessionResourceInputSchema, { kind: { case: "gitRepository", value } }),
  );
  return { vault: await ownVaultOf(sealing, resources, WHO), sealed };
}

describe("tokens of a session's repositories", () => {
  it("are one for each repository, sealed for the session's own vault; without any there is no vault", async () => {
    const one = { url: "https://git.example/o/one", authorizationToken: "first" };
    const again = { ...one, url: "https://git.example/o/one.git/", mountPath: "/workspace/again" };
    const two = { url: "https://git.example/o/two", authorizationToken: "second", userName: "bot" };
    const { vault, sealed } = await vaultOf(one, again, { url: "https://git.example/open" }, two);
    expect(vault?.credentials.map(({ destination }) => destination)).toEqual([
      "git https://git.example/o/one",
      "git https://git.example/o/two",
    ]);
    expect(sealed.map(({ secret }) => [secret.value, secret.userName])).toEqual([
      ["first", ""],
      ["second", "bot"],
    ]);
    expect(sealed.map(({ whose }) => whose)).toEqual(
      vault?.credentials.map(({ credentialId }) => ({
        workspaceId: WHO.workspaceId,
        vaultId: vault.vaultId,
        credentialId,
      })),
    );
    expect((await vaultOf({ url: "https://git.example/open" })).vault).toBeUndefined();
  });

  it("are refused where two differ for one repository, or cannot be sent, and no error repeats one", async () => {
    const one = { url: "https://git.example/o/one", authorizationToken: "first" };
    await expect(vaultOf(one, { ...one, authorizationToken: "second" })).rejects.toThrow(
      /^resources\[1\]\.git_repository\.authorization_token: another resource/,
    );
    await expect(vaultOf({ url: one.url, userName: "bot" })).rejects.toThrow(/user_name/);
    for (const token of ["with space", "line\nbreak", "letter\u00e9"]) {
      const refused = () => checkToken({ token, userName: "" });
      expect(refused).toThrow(/authorization_token: must be printable ASCII/);
      expect(refused).not.toThrow(token);
    }
    expect(() => checkToken({ token: "a", userName: "a:b" })).toThrow(/user_name/);
  });
});

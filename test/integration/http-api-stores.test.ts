import { randomBytes } from "node:crypto";
import Anthropic from "@anthropic-ai/sdk";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { startDatabasePlatform } from "../kit/database-platform.ts";
import type { Platform } from "../kit/platform.ts";

let platform: Platform;
let client: Anthropic;

beforeAll(async () => {
  platform = await startDatabasePlatform({ programs: ["mcp-proxy"] });
  client = new Anthropic({ baseURL: platform.url, apiKey: platform.adminKey, maxRetries: 0 });
});

afterAll(() => platform?.stop());

const canary = () => `sk-${randomBytes(20).toString("hex")}`;

describe("vaults over HTTP", () => {
  it("keep credentials whose secrets are never shown again, whatever is asked (S2)", async () => {
    const vault = await client.beta.vaults.create({ display_name: "mine", metadata: { a: "b" } });
    expect(vault).toMatchObject({ type: "vault", display_name: "mine", archived_at: null });
    const secrets = Array.from({ length: 6 }, canary);
    const [token, access, refresh, client_secret, value, next] = secrets as [
      string,
      string,
      string,
      string,
      string,
      string,
    ];
    const credentials = client.beta.vaults.credentials;
    const bearer = await credentials.create(vault.id, {
      display_name: "one",
      auth: { type: "static_bearer", token, mcp_server_url: "https://one.example.com/mcp" },
    });
    expect(bearer.auth).toEqual({ type: "static_bearer", mcp_server_url: "https://one.example.com/mcp" });
    const oauth = await credentials.create(vault.id, {
      auth: {
        type: "mcp_oauth",
        access_token: access,
        mcp_server_url: "https://two.example.com/mcp",
        expires_at: "2099-01-01T00:00:00Z",
        refresh: {
          client_id: "c",
          refresh_token: refresh,
          token_endpoint: "https://two.example.com/token",
          token_endpoint_auth: { type: "client_secret_post", client_secret },
        },
      },
    });
    expect(oauth.auth).toMatchObject({
      type: "mcp_oauth",
      expires_at: "2099-01-01T00:00:00.000Z",
      refresh: { client_id: "c", token_endpoint_auth: { type: "client_secret_post" } },
    });
    const variable = await credentials.create(vault.id, {
      auth: {
        type: "environment_variable",
        secret_name: "API_KEY",
        secret_value: value,
        networking: { type: "limited", allowed_hosts: ["api.example.com"] },
        injection_location: { header: true, body: true },
      },
    });
    const changed = await credentials.update(variable.id, {
      vault_id: vault.id,
      auth: { type: "environment_variable", secret_value: next, injection_location: { body: false } },
    });
    expect(changed.auth).toMatchObject({
      secret_name: "API_KEY",
      networking: { allowed_hosts: ["api.example.com"] },
      injection_location: { header: true, body: false },
    });
    const other = credentials.update(bearer.id, {
      vault_id: vault.id,
      auth: { type: "mcp_oauth", access_token: canary() },
    });
    await expect(other).rejects.toMatchObject({ status: 400 });
    const all: unknown[] = [bearer, oauth, variable, changed];
    for await (const credential of credentials.list(vault.id, { limit: 1 })) all.push(credential);
    for (const { id } of [bearer, oauth, variable])
      all.push(await credentials.retrieve(id, { vault_id: vault.id }));
    for (const secret of secrets) expect(JSON.stringify(all)).not.toContain(secret);
    expect(all).toHaveLength(10);
    expect((await credentials.archive(bearer.id, { vault_id: vault.id })).archived_at).toMatch(/^2/);
    expect(await credentials.delete(oauth.id, { vault_id: vault.id })).toEqual({
      id: oauth.id,
      type: "vault_credential_deleted",
    });
    const elsewhere = await client.beta.vaults.create({ display_name: "other" });
    const found = credentials.retrieve(variable.id, { vault_id: elsewhere.id });
    await expect(found).rejects.toMatchObject({ status: 404 });
    expect((await client.beta.vaults.archive(vault.id)).archived_at).toMatch(/^2/);
    expect(await client.beta.vaults.delete(vault.id)).toEqual({ id: vault.id, type: "vault_deleted" });
  });

  it("tell whether a credential works, and nothing of it", async () => {
    const vault = await client.beta.vaults.create({ display_name: "tried" });
    const { id } = await client.beta.vaults.credentials.create(vault.id, {
      auth: { type: "mcp_oauth", access_token: canary(), mcp_server_url: "https://127.0.0.1:1/mcp" },
    });
    const result = await client.beta.vaults.credentials.mcpOAuthValidate(id, { vault_id: vault.id });
    expect(result).toMatchObject({
      type: "vault_credential_validation",
      credential_id: id,
      vault_id: vault.id,
      status: "unknown",
      has_refresh_token: false,
      mcp_probe: { method: "initialize", http_response: null },
      refresh: null,
    });
  });
});

describe("memory stores over HTTP", () => {
  it("hold memories with versions, preconditions and redaction", async () => {
    const stores = client.beta.memoryStores;
    const store = await stores.create({ name: "notes", description: "d" });
    expect(store).toMatchObject({ type: "memory_store", name: "notes", description: "d" });
    const view = "full" as const;
    const memory = await stores.memories.create(store.id, { path: "/a/one.md", content: "first", view });
    expect(memory).toMatchObject({
      type: "memory",
      path: "/a/one.md",
      content: "first",
      content_size_bytes: 5,
    });
    const wrong = stores.memories.update(memory.id, {
      memory_store_id: store.id,
      content: "second",
      precondition: { type: "content_sha256", content_sha256: "0".repeat(64) },
    });
    await expect(wrong).rejects.toMatchObject({
      status: 409,
      error: { error: { type: "memory_precondition_failed_error" } },
    });
    const of = { memory_store_id: store.id, view };
    const changed = await stores.memories.update(memory.id, { ...of, content: "second" });
    expect(changed.content).toBe("second");
    const conflict = stores.memories.create(store.id, { path: "/a", content: "x" });
    await expect(conflict).rejects.toMatchObject({
      status: 409,
      error: { error: { type: "memory_path_conflict_error" } },
    });
    const { data: top } = await stores.memories.list(store.id, { path_prefix: "/", depth: 1 });
    expect(top).toEqual([{ type: "memory_prefix", path: "/a/" }]);
    const { data: versions } = await stores.memoryVersions.list(store.id, { memory_id: memory.id });
    expect(versions.map(({ operation }) => operation)).toEqual(["modified", "created"]);
    const redacted = await stores.memoryVersions.redact(versions[1]!.id, { memory_store_id: store.id });
    expect(redacted).toMatchObject({ content: null, path: null, created_by: { type: "api_actor" } });
    expect(await stores.memories.delete(memory.id, { memory_store_id: store.id })).toMatchObject({
      type: "memory_deleted",
    });
    expect((await stores.archive(store.id)).archived_at).toMatch(/^2/);
    expect(await stores.delete(store.id)).toEqual({ id: store.id, type: "memory_store_deleted" });
  });

  it("are given to sessions, which show them", async () => {
    const store = await client.beta.memoryStores.create({ name: "Given Store" });
    const agent = await client.beta.agents.create({ name: "a", model: "m" });
    const environment = await client.beta.environments.create({ name: "e" });
    const session = await client.beta.sessions.create({
      agent: { type: "agent", id: agent.id, version: 1 },
      environment_id: environment.id,
      title: "t",
      resources: [{ type: "memory_store", memory_store_id: store.id, access: "read_only" }],
    });
    expect(session.resources).toMatchObject([
      {
        type: "memory_store",
        memory_store_id: store.id,
        access: "read_only",
        mount_path: "/mnt/memory/given-store",
      },
    ]);
    const found: string[] = [];
    for await (const { id } of client.beta.sessions.list({ memory_store_id: store.id })) found.push(id);
    expect(found).toEqual([session.id]);
    const renamed = await client.beta.sessions.update(session.id, { title: "u", metadata: { a: "b" } });
    expect(renamed).toMatchObject({ title: "u", metadata: { a: "b" } });
  });
});

/** The short acceptance of the HTTP API, by whichever version of the official SDK for TypeScript it is given. */
import type Anthropic from "@anthropic-ai/sdk";
import { expect } from "vitest";

export interface Sdk {
  /** Typed as the newest. */
  readonly client: Anthropic;
  readonly toFile: typeof Anthropic.toFile;
  /** Of names that are to be different for each. */
  readonly name: string;
}

type Step = readonly [what: string, run: (sdk: Sdk) => Promise<void>];

const all = async <T>(pages: AsyncIterable<T>) => {
  const items: T[] = [];
  for await (const item of pages) items.push(item);
  return items;
};
const words = (text: string) => [{ type: "text" as const, text }];
const say = (text: string) => ({ type: "user.message" as const, content: words(text) });

const ASK_USER = {
  type: "custom" as const,
  name: "ask_user",
  description: "Asks.",
  input_schema: { type: "object" as const, properties: {} },
};

async function newSession({ client, name }: Sdk) {
  const agent = await client.beta.agents.create({ name, model: "claude-test", tools: [ASK_USER] });
  const environment = await client.beta.environments.create({ name: `${name} ${agent.id}` });
  return client.beta.sessions.create({ agent: agent.id, environment_id: environment.id });
}

const skillFile = async ({ toFile, name }: Sdk) => {
  const manifest = `---\nname: greeting-${name}\ndescription: Greets.\n---\nSay hello.\n`;
  return toFile(Buffer.from(manifest), `greeting-${name}/SKILL.md`, { type: "text/markdown" });
};

export const STEPS: readonly Step[] = [
  [
    "agents: created, changed under a lock, listed with their versions, archived",
    async ({ client, name }) => {
      const agent = await client.beta.agents.create({
        name,
        model: { id: "claude-test" },
        tools: [ASK_USER],
      });
      expect(agent).toMatchObject({ type: "agent", version: 1, name, model: { id: "claude-test" } });
      const changed = await client.beta.agents.update(agent.id, { version: 1, description: "changed" });
      expect(changed).toMatchObject({ version: 2, description: "changed" });
      const stale = client.beta.agents.update(agent.id, { version: 1, description: "again" });
      await expect(stale).rejects.toMatchObject({ status: 409 });
      const versions = await all(client.beta.agents.versions.list(agent.id, { limit: 1 }));
      expect(versions.map(({ version }) => version)).toEqual([2, 1]);
      expect((await all(client.beta.agents.list({ limit: 1 }))).map(({ id }) => id)).toContain(agent.id);
      expect((await client.beta.agents.archive(agent.id)).archived_at).not.toBeNull();
    },
  ],
  [
    "environments: created, changed, listed, archived and deleted",
    async ({ client, name }) => {
      const { environments } = client.beta;
      const networking = { type: "limited" as const, allowed_hosts: ["example.com"] };
      const made = await environments.create({ name: `of ${name}`, config: { type: "cloud", networking } });
      expect(made.config).toMatchObject({ type: "cloud", networking });
      expect(await environments.update(made.id, { description: "d" })).toMatchObject({ description: "d" });
      expect((await all(environments.list({ limit: 1 }))).map(({ id }) => id)).toContain(made.id);
      expect((await environments.archive(made.id)).archived_at).not.toBeNull();
      expect(await environments.delete(made.id)).toMatchObject({ type: "environment_deleted" });
    },
  ],
  [
    "sessions and events: a turn with a custom tool, followed to its end, found in the history; archived and deleted",
    async (sdk) => {
      const { sessions } = sdk.client.beta;
      const session = await newSession(sdk);
      expect(session).toMatchObject({ type: "session", status: "idle" });
      const stream = await sessions.events.stream(session.id);
      await sessions.events.send(session.id, { events: [say("ask the user")] });
      const seen: { id: string; type: string }[] = [];
      for await (const event of stream) {
        seen.push(event as never);
        if (event.type === "agent.custom_tool_use") {
          const answer = { type: "user.custom_tool_result" as const, custom_tool_use_id: event.id };
          const events = [{ ...answer, content: words("the user's answer") }];
          await sessions.events.send(session.id, { events });
        }
        if (event.type === "session.status_idle" && event.stop_reason.type === "end_turn") break;
      }
      const history = await all(sessions.events.list(session.id, { limit: 2 }));
      // What a version does not know it does not show on its streams.
      const shown = new Set(seen.map(({ id }) => id));
      const unknown = history.filter(({ id }) => !shown.has(id)).map(({ type }) => type);
      expect(unknown.filter((type) => type !== "session.usage")).toEqual([]);
      expect(JSON.stringify(history.filter(({ type }) => type === "agent.message"))).toContain(
        "The user says: the user's answer",
      );
      expect((await sessions.retrieve(session.id)).status).toBe("idle");
      expect((await all(sessions.list({ limit: 1 }))).map(({ id }) => id)).toContain(session.id);
      await expect(sessions.events.send(session.id, { events: [] })).rejects.toMatchObject({ status: 400 });
      expect((await sessions.archive(session.id)).status).toBe("terminated");
      expect(await sessions.delete(session.id)).toMatchObject({ type: "session_deleted" });
      await expect(sessions.retrieve(session.id)).rejects.toMatchObject({ status: 404 });
    },
  ],
  [
    "vaults: credentials kept, listed without their secrets, archived and deleted",
    async ({ client, name }) => {
      const { vaults } = client.beta;
      const secret = `secret-of-${name}`;
      const vault = await vaults.create({ display_name: name });
      const made = await vaults.credentials.create(vault.id, {
        auth: { type: "static_bearer", token: secret, mcp_server_url: "https://mcp.example.com/mcp" },
      });
      const listed = await all(vaults.credentials.list(vault.id, { limit: 1 }));
      expect(listed.map(({ id }) => id)).toEqual([made.id]);
      expect(JSON.stringify([made, listed])).not.toContain(secret);
      expect((await vaults.credentials.archive(made.id, { vault_id: vault.id })).archived_at).not.toBeNull();
      expect(await vaults.delete(vault.id)).toMatchObject({ type: "vault_deleted" });
    },
  ],
  [
    "files: uploaded, listed page by page, downloaded and deleted",
    async ({ client, toFile, name }) => {
      const { files } = client.beta;
      const upload = async (text: string) =>
        files.upload({ file: await toFile(Buffer.from(text), `${name}.txt`, { type: "text/plain" }) });
      const made = [await upload("one"), await upload("two"), await upload("three")];
      expect(made[0]).toMatchObject({ type: "file", filename: `${name}.txt`, size_bytes: 3 });
      expect(await files.retrieveMetadata(made[0]!.id)).toEqual(made[0]);
      const listed = (await all(files.list({ limit: 2 }))).map(({ id }) => id);
      expect(listed).toEqual(made.map(({ id }) => id).toReversed());
      expect(await (await files.download(made[1]!.id)).text()).toBe("two");
      for (const { id } of made) expect(await files.delete(id)).toEqual({ id, type: "file_deleted" });
    },
  ],
  [
    "skills: created with a name, versions listed and downloaded, deleted",
    async (sdk) => {
      const { skills } = sdk.client.beta;
      const display_name = `Greeting of ${sdk.name}`;
      const made = await skills.create({ files: [await skillFile(sdk)], display_name });
      expect(made).toMatchObject({ type: "skill", display_name, source: { type: "custom" } });
      const { id } = made;
      const second = await skills.versions.create(id, { files: [await skillFile(sdk)] });
      const { latest_version_id: version } = await skills.retrieve(id);
      expect(await all(skills.versions.list(id, { limit: 1 }))).toHaveLength(2);
      const read = await skills.versions.retrieve(version, { skill_id: id });
      expect(read).toEqual(second);
      expect(read).toMatchObject({ name: `greeting-${sdk.name}`, description: "Greets." });
      const zip = await (await skills.versions.download(version, { skill_id: id })).arrayBuffer();
      expect(Buffer.from(zip).subarray(0, 2).toString()).toBe("PK");
      expect((await all(skills.list({ limit: 1 }))).map((skill) => skill.id)).toContain(id);
      expect(await skills.versions.delete(version, { skill_id: id })).toEqual({
        id: version,
        type: "skill_version_deleted",
      });
      await skills.delete(id);
    },
  ],
  [
    "memory stores: memories written, changed under a precondition, listed, deleted",
    async ({ client, name }) => {
      const { memoryStores } = client.beta;
      const store = await memoryStores.create({ name });
      const memory = await memoryStores.memories.create(store.id, { path: "/a/one.md", content: "first" });
      const named = { memory_store_id: store.id };
      const precondition = { type: "content_sha256" as const, content_sha256: "0".repeat(64) };
      const stale = memoryStores.memories.update(memory.id, { ...named, content: "second", precondition });
      await expect(stale).rejects.toMatchObject({ status: 409 });
      await memoryStores.memories.update(memory.id, { ...named, content: "second" });
      expect((await memoryStores.memories.retrieve(memory.id, named)).content).toBe("second");
      const listed = await all(memoryStores.memories.list(store.id, { limit: 1 }));
      expect(listed.map((entry) => "id" in entry && entry.id)).toEqual([memory.id]);
      const versions = await all(memoryStores.memoryVersions.list(store.id, { limit: 1 }));
      expect(versions.map(({ operation }) => operation)).toEqual(["modified", "created"]);
      await memoryStores.memories.delete(memory.id, named);
      expect(await memoryStores.delete(store.id)).toMatchObject({ type: "memory_store_deleted" });
    },
  ],
];

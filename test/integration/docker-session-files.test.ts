/** Docker hands of a platform, over HTTP: files of sessions, and packages that environments name. */
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import Anthropic, { toFile } from "@anthropic-ai/sdk";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { startDatabasePlatform } from "../kit/database-platform.ts";
import { type TestEngine, useDocker, whyNoDocker } from "../kit/docker.ts";
import { ensureBashImage } from "../kit/docker-images.ts";
import { eventually } from "../kit/eventually.ts";
import type { Platform } from "../kit/platform.ts";

/** Stands for the far side of the network: says what it was asked for, and does not have everything. */
const NPM = `#!/bin/sh
[ "$1 $2" = "install --global" ] || exit 9
shift 2
for name; do
  [ "$name" = missing ] && echo "404 no package is called $name" && exit 3
  echo "$name" >>/installed
done
date +%s%N >>/when
`;
const IMAGE = "tendon-test/npm:1";

describe.skipIf(whyNoDocker() !== undefined)("docker hands over HTTP", () => {
  let engine: TestEngine;
  let platform: Platform;
  let client: Anthropic;
  let agent: string;

  beforeAll(async () => {
    engine = await useDocker();
    await makeImage(engine);
    platform = await startDatabasePlatform({
      env: {
        server: { TENDON_DEFAULT_DRIVER: "docker", TENDON_DEFAULT_IMAGE: IMAGE },
        "hand-agent": { DOCKER_HOST: engine.host },
      },
    });
    client = new Anthropic({ baseURL: platform.url, apiKey: platform.adminKey, maxRetries: 0 });
    const tools = [{ type: "agent_toolset_20260401" as const }];
    agent = (await client.beta.agents.create({ name: "a", model: "demo", tools })).id;
  });
  afterAll(async () => {
    await platform?.stop();
    const images = (await engine.docker("images", "--quiet", "tendon-packages")).split("\n").filter(Boolean);
    for (const image of new Set(images)) await engine.docker("rmi", "--force", image).catch(() => {});
    await engine?.docker("rmi", "--force", IMAGE).catch(() => {});
    await engine?.release();
  });

  const environment = async (name: string, config: object) =>
    (await client.beta.environments.create({ name, config: { type: "cloud", ...config } as never })).id;

  async function turn(sessionId: string, text: string): Promise<string> {
    const stream = await client.beta.sessions.events.stream(sessionId);
    const content = [{ type: "text" as const, text }];
    await client.beta.sessions.events.send(sessionId, { events: [{ type: "user.message", content }] });
    const said: string[] = [];
    for await (const event of stream) {
      if (event.type === "agent.tool_result") said.push(JSON.stringify(event.content));
      if (event.type === "session.status_idle") break;
    }
    return said.join("\n");
  }

  it("have the files of their session, and what they leave is a file of it", async () => {
    const environment_id = await environment("files", {});
    const file = await client.beta.files.upload({ file: await toFile(Buffer.from("from afar\n"), "a.txt") });
    const resources = [{ type: "file" as const, file_id: file.id, mount_path: "/in/a.txt" }];
    const session = await client.beta.sessions.create({ agent, environment_id, resources });
    const path = "/mnt/session/uploads/in/a.txt";
    const said = await turn(session.id, `run: cat ${path} | tee /mnt/session/outputs/b.txt\nread: ${path}`);
    expect(said.match(/from afar/g)).toHaveLength(2);
    expect(await turn(session.id, `run: echo x >>${path} || echo refused`)).toContain("refused");
    const output = await eventually(async () => {
      const { data } = await client.beta.files.list({ scope_id: session.id });
      return data.find(({ filename }) => filename === "b.txt");
    });
    expect(await (await client.beta.files.download(output.id)).text()).toBe("from afar\n");
    await client.beta.sessions.delete(session.id);
  });

  it("have the packages of their environment, which are installed once", async () => {
    const packages = { npm: ["left-pad@1.0.0", "it's"] };
    const odd = environment("odd", { packages });
    await expect(odd).rejects.toMatchObject({ status: 400 });
    packages.npm[1] = "other";
    const environment_id = await environment("packed", { packages });
    const looks: string[] = [];
    for (let n = 0; n < 2; n += 1) {
      const session = await client.beta.sessions.create({ agent, environment_id });
      looks.push(await turn(session.id, "run: cat /installed /when"));
      await client.beta.sessions.delete(session.id);
    }
    expect(looks[0]).toContain("left-pad@1.0.0\\nother\\n");
    expect(looks[1]).toBe(looks[0]);
  });

  it("say what a package manager said when a package cannot be had; a process hand says that it takes none", async () => {
    const missing = await environment("missing", { packages: { npm: ["missing"] } });
    const session = await client.beta.sessions.create({ agent, environment_id: missing });
    expect(await turn(session.id, "run: true")).toMatch(/could not be installed \(exit 3\).*404 no package/);
    const config = { tendon: { driver: "process" }, packages: { pip: ["x"] } };
    await expect(environment("process", config)).rejects.toMatchObject({
      status: 400,
      error: { error: { details: { field: expect.stringContaining("packages.pip") } } },
    });
    const closed = {
      networking: { type: "limited", allowed_hosts: ["a.example"] },
      packages: { pip: ["x"] },
    };
    await expect(environment("closed", closed)).rejects.toMatchObject({ status: 400 });
    const id = await environment("open", {
      networking: { type: "limited", allow_package_managers: true, allow_mcp_servers: true },
      packages: { pip: ["x==1"] },
    });
    expect((await client.beta.environments.retrieve(id)).config).toMatchObject({
      networking: {
        type: "limited",
        allowed_hosts: [],
        allow_package_managers: true,
        allow_mcp_servers: true,
      },
      packages: { type: "packages", pip: ["x==1"], apt: [] },
    });
  });
});

async function makeImage(engine: TestEngine): Promise<void> {
  const base = await ensureBashImage(engine);
  const dir = await mkdtemp(join(tmpdir(), "tendon-npm-"));
  let id = "";
  try {
    await writeFile(join(dir, "npm"), NPM, { mode: 0o755 });
    id = (await engine.docker("create", base, "/bin/sh")).trim();
    await engine.docker("cp", join(dir, "npm"), `${id}:/bin/npm`);
    await engine.docker("commit", id, IMAGE);
  } finally {
    if (id !== "") await engine.docker("rm", id);
    await rm(dir, { recursive: true, force: true });
  }
}

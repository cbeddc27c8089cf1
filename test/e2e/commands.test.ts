/** The `tendon` command against a running installation: what people read, what programs read, what goes wrong. */
import { existsSync, mkdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { createSecureServer } from "node:http2";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { eventually } from "../kit/eventually.ts";
import { atOwnPort, Installation } from "../kit/start-process.ts";
import { createCertificates } from "../kit/test-certificates.ts";

const installation = new Installation();
let url = "";
beforeAll(async () => {
  url = await installation.start(await atOwnPort()).ready();
});
afterAll(() => installation.dispose());

type Json = Record<string, never> & { id: string };
const json = <T = Json>(...args: string[]) => installation.json<T>(...args);

describe("definitions", () => {
  test("an agent is made, read, changed and archived, by id or name", async () => {
    const made = await json<{ id: string; version: number; spec: { name: string; tools: unknown[] } }>(
      "agent",
      "create",
      "--name",
      "helper",
      "--model",
      "some-model",
      "--metadata",
      "team=core",
    );
    expect(made).toMatchObject({
      version: 1,
      spec: { name: "helper", model: { id: "some-model" }, metadata: { team: "core" } },
    });
    expect(made.spec.tools).toHaveLength(1);
    const changed = await json<{ version: number; spec: object }>(
      "agent",
      "update",
      made.id,
      "--system",
      "Be brief.",
    );
    expect(changed).toMatchObject({
      version: 2,
      spec: { name: "helper", system: "Be brief.", model: { id: "some-model" } },
    });
    expect(await json("agent", "get", "helper", "--version-number", "1")).toMatchObject({
      spec: { system: "" },
    });
    expect(await json("agent", "archive", "helper")).toHaveProperty("archived_at");
    const { agents } = await json<{ agents: { id: string }[] }>("agent", "list", "--archived");
    expect(agents.map(({ id }) => id)).toContain(made.id);
  });

  test("an environment is made, changed and archived, by id or name; a self-hosted one is told apart", async () => {
    const made = await json(
      "env",
      "create",
      "--name",
      "closed",
      "--network",
      "none",
      "--label",
      "a=b",
      "--memory-mib",
      "64",
    );
    expect(made).toMatchObject({
      is_default: false,
      spec: {
        network: { mode: "NETWORK_MODE_NONE" },
        labels: { a: "b" },
        limits: { memory_bytes: "67108864" },
      },
    });
    const changed = await json("env", "update", made.id, "--pids", "10", "--stall-timeout", "5m");
    expect(changed).toMatchObject({
      spec: { name: "closed", limits: { pids: 10, memory_bytes: "67108864" }, stall_timeout_ms: "300000" },
    });
    expect(await json("env", "archive", "closed")).toHaveProperty("archived_at");
    const spec = `${installation.dataDir}/theirs.json`;
    writeFileSync(spec, JSON.stringify({ name: "theirs", selfHosted: true }));
    const shown = (await installation.tendon(["env", "create", "--spec", spec])).stdout;
    expect(shown).toMatch(/^driver +self-hosted$/m);
    expect((await installation.tendon(["env", "list"])).stdout).toMatch(/ theirs +self-hosted +\d{4}-/);
  });

  test("a memory store's texts are written, listed, read as they are, and its versions told", async () => {
    const { id } = await json("memory", "create", "--name", "Team notes");
    await json("memory", "put", "Team notes", "/build/how.md", "use make");
    const put = await json<{ content_sha256: string }>("memory", "put", id, "/build/how.md", "use just");
    const stale = ["memory", "put", id, "/build/how.md", "x", "--if-sha256", "0".repeat(64)];
    expect(await installation.tendon(stale)).toMatchObject({ code: 1 });
    expect((await installation.tendon(["memory", "get", "Team notes", "/build/how.md"])).stdout).toBe(
      "use just",
    );
    expect((await installation.tendon(["memory", "list", id])).stdout).toContain("/build/");
    const { memory_versions } = await json<{ memory_versions: object[] }>(
      "memory",
      "versions",
      id,
      "/build/how.md",
    );
    expect(memory_versions).toMatchObject([
      { operation: "MEMORY_OPERATION_MODIFIED", content_sha256: put.content_sha256 },
      { operation: "MEMORY_OPERATION_CREATED" },
    ]);
    const session = await json<{ resources: object[] }>(
      "session",
      "create",
      "--memory-read-only",
      "Team notes",
    );
    expect(session.resources).toMatchObject([
      {
        memory_store: {
          memory_store_id: id,
          access: "MEMORY_ACCESS_READ_ONLY",
          mount_path: "/mnt/memory/team-notes",
        },
      },
    ]);
  });

  test("a file is stored, listed, read back byte for byte, and deleted", async () => {
    const dir = installation.dataDir;
    const bytes = Buffer.from([0, 255, 10, 13, 1]);
    writeFileSync(`${dir}/data.bin`, bytes);
    const stored = await json("file", "upload", `${dir}/data.bin`, "--mime-type", "image/x-test");
    expect(stored).toMatchObject({ filename: "data.bin", size_bytes: "5", mime_type: "image/x-test" });
    const { files } = await json<{ files: { id: string }[] }>("file", "list");
    expect(files.map(({ id }) => id)).toContain(stored.id);
    mkdirSync(`${dir}/out`);
    const { to } = await json<{ to: string }>("file", "download", stored.id, `${dir}/out`);
    expect(readFileSync(to)).toEqual(bytes);
    expect(await installation.tendon(["file", "download", stored.id, to])).toMatchObject({ code: 1 });
    await json("file", "delete", stored.id);
    expect(await installation.tendon(["file", "get", stored.id])).toMatchObject({ code: 1 });
    expect(await installation.tendon(["file", "upload", `${dir}/nothing`])).toMatchObject({ code: 2 });
    const named = await json("file", "upload", `${dir}/data.bin`, "--name", "sales.csv");
    expect(named).toMatchObject({ filename: "sales.csv", mime_type: "text/csv" });
  });

  test("a skill is made of a folder, gets versions, and comes back as an archive", async () => {
    const folder = `${installation.dataDir}/greet`;
    mkdirSync(`${folder}/bin`, { recursive: true });
    const manifest = (what: string) => `---\nname: greet\ndescription: ${what}\n---\nRun bin/run.\n`;
    writeFileSync(`${folder}/SKILL.md`, manifest("Greets."));
    writeFileSync(`${folder}/bin/run`, "echo hello\n", { mode: 0o755 });
    type Upload = { skill: { id: string; latest_version_id: string }; skill_version: { id: string } };
    const made = await json<Upload>("skill", "create", folder, "--name", "Greeter");
    expect(made).toMatchObject({ skill: { display_name: "Greeter" }, skill_version: { name: "greet" } });
    writeFileSync(`${folder}/SKILL.md`, manifest("Greets all."));
    const next = await json<Upload>("skill", "update", made.skill.id, folder);
    const versions = await installation.tendon(["skill", "versions", made.skill.id]);
    expect(versions.stdout.indexOf(next.skill_version.id)).toBeGreaterThan(0);
    expect(versions.stdout.indexOf(made.skill_version.id)).toBeGreaterThan(
      versions.stdout.indexOf(next.skill_version.id),
    );
    const shown = (await installation.tendon(["skill", "show", made.skill.id])).stdout;
    expect(shown).toContain("Greets all.");
    expect(shown).toContain("bin/run (executable)");
    const to = `${installation.dataDir}/greet.zip`;
    await json("skill", "download", made.skill.id, to, "--version-id", made.skill_version.id);
    expect(readFileSync(to).subarray(0, 4).toString("latin1")).toBe("PK\u0003\u0004");
    await json("skill", "delete", made.skill.id, "--version-id", next.skill_version.id);
    expect(await json("skill", "get", made.skill.id)).toMatchObject({
      latest_version_id: made.skill_version.id,
    });
    await json("skill", "delete", made.skill.id);
    expect((await installation.tendon(["skill", "create", `${folder}/bin`])).stderr).toContain("SKILL.md");
  });

  test("a name that one agent has stands for its id, a name of several does not", async () => {
    const { id } = await json("agent", "create", "--name", "twin");
    const create = (agent: string) => installation.tendon(["session", "create", "--json", "--agent", agent]);
    expect(JSON.parse((await create("twin")).stdout)).toMatchObject({ agent: { id } });
    const { id: other } = await json("agent", "create", "--name", "twin");
    const ambiguous = await create("twin");
    expect(ambiguous.code).toBe(2);
    expect(ambiguous.stderr).toContain(id);
    expect(ambiguous.stderr).toContain(other);
    expect((await create("nobody")).stderr).toContain("there is no agent named");
  });

  test("a workspace and a key for it let a client in, and nobody once revoked", async () => {
    const workspace = await json("workspace", "create", "acme", "--hands", "3");
    const { secret, api_key } = await json<{ secret: string; api_key: { id: string } }>(
      ...["key", "create", "laptop", "--workspace", workspace.id],
    );
    const env = { TENDON_API_KEY: secret };
    const allowed = await installation.tendon(["agent", "list", "--json"], { env });
    expect(JSON.parse(allowed.stdout)).toMatchObject({ agents: [] });
    const refused = await installation.tendon(["workspace", "create", "other"], { env });
    expect(refused).toMatchObject({ code: 1 });
    await json("key", "revoke", api_key.id);
    const revoked = await installation.tendon(["agent", "list"], { env });
    expect(revoked.code).toBe(1);
    expect(revoked.stderr).toContain("does not accept the key");
    expect(revoked.stderr).toContain("TENDON_API_KEY");
    expect(revoked.stderr).not.toContain(secret);
  });
});

describe("sessions", () => {
  test("a session is made, followed, read from both ends and archived", async () => {
    const { id } = await json("session", "create", "--title", "one", "--message", "run: echo first-$((1+1))");
    expect((await installation.tendon(["session", "watch", id, "--until-idle"])).stdout).toContain("first-2");
    const sent = await installation.tendon(["session", "send", id, "run: echo second-$((2+2))", "--follow"]);
    expect(sent).toMatchObject({ code: 0 });
    expect(sent.stdout).toContain("second-4");
    type Slice = { events: { position: string; type: string }[]; head: string; has_more: boolean };
    const last = await json<Slice>("session", "events", id, "--desc", "--limit", "2");
    expect(last.events.map(({ position }) => position)).toEqual([last.head, String(Number(last.head) - 1)]);
    expect(last.has_more).toBe(true);
    const middle = await json<Slice>("session", "events", id, "--after", "2", "--before", "5");
    expect(middle.events.map(({ position }) => position)).toEqual(["3", "4"]);
    const calls = await json<Slice>("session", "events", id, "--types", "agent.tool_use,agent.tool_result");
    expect(calls.events.map(({ type }) => type)).toEqual([
      "agent.tool_use",
      "agent.tool_result",
      "agent.tool_use",
      "agent.tool_result",
    ]);
    const listed = await json<{ sessions: { id: string }[] }>("session", "list", "--status", "idle");
    expect(listed.sessions.map((session) => session.id)).toContain(id);
    expect(await json("session", "wake", id)).toEqual({ has_work: false });
    expect(await json("session", "archive", id)).toMatchObject({ status: "SESSION_STATUS_TERMINATED" });
    expect(await json("session", "delete", id)).toEqual({ deleted: id });
    const gone = await installation.tendon(["session", "get", id, "--json"]);
    expect(gone.code).toBe(1);
    expect(JSON.parse(gone.stderr)).toMatchObject({ error: { reason: "NOT_FOUND", metadata: { id } } });
  });

  test("outcomes are worked towards, judged, mended and reached, and each evaluation is told", async () => {
    const begun = ["--outcome", "run: echo 42", "--rubric", "contains: 42", "--max-iterations", "1"];
    const { id } = await json("session", "create", ...begun);
    const watched = await installation.tendon(["session", "watch", id, "--until-idle"]);
    expect(watched).toMatchObject({ code: 0, stdout: expect.stringContaining("evaluation 1: satisfied") });
    const outcome = ["--outcome", "run: echo 41", "--rubric", "contains: 43"];
    const sent = await installation.tendon(["session", "send", id, ...outcome, "--follow"]);
    expect(sent.stdout).toMatch(
      /evaluation 1: the work is judged[\s\S]*evaluation 1: needs_revision[\s\S]*not met: contains: 43[\s\S]*evaluation 2: satisfied/,
    );
    expect(sent).toMatchObject({ code: 0 });
    expect((await installation.tendon(["session", "get", id])).stdout).toMatch(
      /outcome +outc_\w+: satisfied, iteration 0\noutcome +outc_\w+: satisfied, iteration 1/,
    );
    expect((await installation.tendon(["session", "outcomes", id])).stdout).toMatch(
      /^outc_\w+ {2}run: echo 42\n {2}◆ evaluation 1 of at most 1: satisfied \([\d.]+ s, by [\w-]+[\s\S]*\n {4}- met: contains: 42\n[\s\S]*\n\noutc_\w+ {2}run: echo 41\n[\s\S]*evaluation 2 of at most 3: satisfied/,
    );
    const two = ["--outcome", "x", "--rubric", "a", "--rubric-id", "file_b"];
    const refused = await installation.tendon(["session", "send", id, ...two]);
    expect(refused).toMatchObject({ code: 2, stderr: expect.stringContaining("--rubric") });
  });

  test("a position that the log has not reached is told as such", async () => {
    const { id } = await json("session", "create");
    const { code, stderr } = await installation.tendon(["session", "watch", id, "--after", "999"]);
    expect(code).toBe(1);
    expect(stderr).toMatch(/999 is after the newest event, which has position \d/);
  });

  test("a payload of a client's own type stays as it was written, byte for byte", async () => {
    const { id } = await json("session", "create");
    const payload = '{ "b":1,\t"a" : [1.0, "\\u00e9"] }';
    await json("session", "send", id, "--type", "acme.created", "--payload", payload);
    const { events } = await json<{ events: { payload: string }[] }>(
      "session",
      "events",
      id,
      "--types",
      "acme.created",
    );
    expect(events.map((event) => event.payload)).toEqual([payload]);
  });

  test("a chat takes lines from a pipe and ends with them", async () => {
    const input = "run: echo piped-$((3+3))\n\nhello\n/session\n";
    const { code, stdout } = await installation.tendon(["chat"], { input });
    expect(code).toBe(0);
    expect(stdout).toContain("piped-6");
    expect(stdout).toMatch(/sesn_\w+\n$/);
  });

  test("a session stops at its budget and says so, and goes on with a larger one", async () => {
    const { id } = await json("session", "create", "--max-turns", "1", "--max-time", "1h");
    const sent = await installation.tendon(["session", "send", id, "run: echo once-$((1+1))", "--follow"]);
    expect(sent.stdout).toMatch(/once-2[\s\S]*budget_reached/);
    expect(sent.code).toBe(1);
    const shown = (await installation.tendon(["session", "get", id])).stdout;
    expect(shown).toMatch(/idle \(budget_reached\)[\s\S]*1 model requests, 3600 s/);
    await json("session", "budget", id, "--max-turns", "10");
    await eventually(async () => {
      const { stop_reason } = await json<{ stop_reason: string }>("session", "get", id);
      return stop_reason === "STOP_REASON_END_TURN";
    });
    expect(await json("session", "budget", id, "--none")).not.toHaveProperty("budget");
  });

  test("sessions are stopped one by one and all at once; nothing works then", async () => {
    const ids = await Promise.all(
      [1, 2].map(async () => (await json("session", "create", "--message", "run: sleep 600")).id),
    );
    const isRunning = async (id: string) =>
      (await json<{ status: string }>("session", "get", id)).status === "SESSION_STATUS_RUNNING";
    await eventually(async () => (await isRunning(ids[0]!)) && (await isRunning(ids[1]!)), {
      withinMs: 60_000,
    });
    expect((await installation.tendon(["session", "stop", ids[0]!])).stdout).toBe("1 of 1 stopped\n");
    expect(await isRunning(ids[1]!)).toBe(true);
    expect((await installation.tendon(["session", "threads", ids[1]!])).stdout).toMatch(/^ID +TITLE +STATUS/);
    expect(await json("session", "stop", "--all")).toEqual({ session_ids: [ids[1]] });
    expect(await isRunning(ids[1]!)).toBe(false);
    expect((await installation.tendon(["session", "stop", "--all"])).stdout).toBe("nothing works\n");
    expect((await installation.tendon(["session", "stop"])).code).toBe(2);
  });

  test("an interrupt ends what a session does", async () => {
    const { id } = await json("session", "create", "--message", "run: echo started; sleep 600");
    const watched = installation.tendon(["session", "watch", id, "--previews", "--until-idle"]);
    await json("session", "send", id, "--interrupt");
    expect((await watched).stdout).not.toContain("session.error");
    expect(await json("session", "get", id)).toMatchObject({ status: "SESSION_STATUS_IDLE" });
  });
});

describe("hands", () => {
  test("a hand is made, runs commands and other tools, and is given back", async () => {
    const { id } = await json("hand", "provision");
    const ran = await installation.tendon(["hand", "exec", id, "echo out-$((4+4)); exit 3"]);
    expect(ran).toMatchObject({ code: 1, stdout: "out-8\n" });
    expect(ran.stderr).toContain("[the shell exited with code 3; the next command gets a new shell");
    expect(ran.stderr).toMatch(/the command failed, exit code 3\n$/);
    const args = ["--tool", "write", "--input", '{"file_path": "a.txt", "content": "kept"}'];
    expect((await installation.tendon(["hand", "exec", id, ...args])).code).toBe(0);
    expect((await installation.tendon(["hand", "exec", id, "cat", "a.txt"])).stdout.trim()).toBe("kept");
    const lines = (await installation.tendon(["hand", "exec", id, "--json", "echo hi"])).stdout
      .trimEnd()
      .split("\n");
    expect(Object.keys(JSON.parse(lines.at(-1)!))).toEqual(["result"]);
    expect(await json("hand", "release", id)).toMatchObject({ state: "HAND_STATE_RELEASED" });
  });

  test("hand agents are listed, and join tokens shown once", async () => {
    const { hand_agents } = await json<{ hand_agents: object[] }>("hand-agent", "list");
    expect(hand_agents).toMatchObject([{ name: "local", online: true }]);
    expect(await json("hand-agent", "join-token", "--uses", "2")).toMatchObject({
      join_token: { uses_left: 2 },
    });
  });
});

describe("programs started by themselves", () => {
  test("a hand agent joins with a token from a file, which stands in no argument", async () => {
    const tokenFile = `${installation.dataDir}/join-token`;
    const made = await installation.tendon(["hand-agent", "join-token", "--out", tokenFile]);
    const secret = readFileSync(tokenFile, "utf8").trim();
    expect(statSync(tokenFile).mode & 0o777).toBe(0o600);
    expect(secret).not.toBe("");
    expect(made.stdout).not.toContain(secret);
    expect(made.stdout).toContain(`--token-file ${tokenFile}`);
    const dir = `${installation.dataDir}/second-agent`;
    const args = ["--url", url, "--token-file", tokenFile, "--data-dir", dir, "--name", "second"];
    const agent = installation.startTendon(["hand-agent", "run", ...args]);
    await eventually(
      async () => {
        const { hand_agents } = await json<{ hand_agents: { name: string; online: boolean }[] }>(
          "hand-agent",
          "list",
        );
        return hand_agents.some(({ name, online }) => name === "second" && online);
      },
      { withinMs: 60_000 },
    );
    expect(
      installation
        .processes()
        .map(({ command }) => command)
        .join(),
    ).not.toContain(secret);
    const { hand_agents } = await json<{ hand_agents: { id: string; name: string }[] }>("hand-agent", "list");
    const { id } = hand_agents.find(({ name }) => name === "second")!;
    const revoked = await installation.tendon(["hand-agent", "revoke", id]);
    expect(revoked).toMatchObject({ code: 0, stdout: `${id} is revoked\n` });
    expect(await agent.ended()).toMatchObject({ code: 3 });
  });

  test.each([[["server"]], [["harness"]], [["mcp-proxy"]], [["hand-agent", "run"]]])(
    "the help of %j is plain text that names the command as it is called",
    async (words) => {
      const { code, stdout } = await installation.tendon([...words, "--help"]);
      expect(code).toBe(0);
      expect(stdout).toContain(`Usage: tendon ${words.join(" ")} [options]`);
      expect(stdout).not.toMatch(/^\|/m);
      if (words[0] === "hand-agent") expect(stdout).toContain("--token-file FILE");
    },
  );

  test("arguments of a program reach it", async () => {
    const { code, stdout } = await installation.tendon(["server", "--print-config"]);
    expect(code).toBe(0);
    expect(stdout).toContain(`TENDON_DATA_DIR=${installation.dataDir}`);
  });
});

describe("doctor", () => {
  test("finds all well but the model, which is the demo", async () => {
    const { ok, checks } = await json<{ ok: boolean; checks: { name: string; verdict: string }[] }>("doctor");
    expect(ok).toBe(true);
    expect(checks.filter(({ verdict }) => verdict === "warn").map(({ name }) => name)).toContain("model");
    expect(checks.map(({ name }) => name)).toEqual([
      "node",
      "data dir",
      "server",
      "database",
      "model",
      "hands",
      "isolation",
      "network",
      "proxy",
    ]);
  });

  test("a key that is refused is told as such, not as a server that does not answer", async () => {
    const { code, stdout } = await installation.tendon(["doctor"], { env: { TENDON_API_KEY: "tk_wrong" } });
    expect(code).toBe(1);
    expect(stdout).toContain("FAIL key");
    expect(stdout).toContain("warn database   not known: the key was refused");
    expect(stdout).not.toContain("does not answer");
  });

  test("works without a server and says what to do", async () => {
    const { code, stdout } = await installation.tendon(["doctor", "--url", "http://127.0.0.1:1"]);
    expect(code).toBe(1);
    expect(stdout).toContain("FAIL server     http://127.0.0.1:1 does not answer");
    expect(stdout).toContain("npm start");
  });
});

describe("what goes wrong", () => {
  test("a server that is not there", async () => {
    const { code, stderr } = await installation.tendon(["session", "list", "--url", "http://127.0.0.1:1"]);
    expect(code).toBe(1);
    expect(stderr).toContain("cannot reach the server at http://127.0.0.1:1: is it running?");
  });

  test("a certificate that nobody here vouches for", async () => {
    const certificates = await createCertificates();
    const { certFile, keyFile } = await certificates.issue("localhost");
    const server = createSecureServer({
      allowHTTP1: true,
      cert: readFileSync(certFile),
      key: readFileSync(keyFile),
    }).listen(0, "localhost");
    try {
      await eventually(() => server.listening);
      const { port } = server.address() as { port: number };
      const at = ["--url", `https://localhost:${port}`];
      const { code, stderr } = await installation.tendon(["session", "list", ...at]);
      expect(code).toBe(1);
      expect(stderr).toContain("TENDON_CA_FILE or --ca-file");
      expect(stderr).not.toMatch(/is it running|Resolution note|No connection established/);
      const doctor = await installation.tendon(["doctor", ...at]);
      expect(doctor.stdout).toContain("TENDON_CA_FILE or --ca-file");
    } finally {
      server.close();
      await certificates.remove();
    }
  });

  test("no key", async () => {
    const empty = new Installation();
    try {
      const { code, stderr } = await empty.tendon(["session", "list", "--url", url]);
      expect(code).toBe(1);
      expect(stderr).toContain(`there is no ${empty.dataDir}/admin.key`);
      expect(existsSync(empty.dataDir)).toBe(false);
    } finally {
      await empty.dispose();
    }
  });

  test.each([
    [["session", "events"], "missing required argument 'session'"],
    [["sesion", "list"], "unknown command 'sesion'"],
    [["session", "list", "--limit", "1000"], "It must be a whole number from 1 to 100."],
    [["session", "list", "--url", "ftp://x"], '"ftp://x" is no server URL'],
    [["start", "--once", ""], "--once needs a message"],
    [["env", "create", "--network", "some"], "It must be one of none, limited, unrestricted."],
  ])("wrong usage %j ends with 2", async (args, told) => {
    const { code, stdout, stderr } = await installation.tendon(args);
    expect({ code, stdout }).toEqual({ code: 2, stdout: "" });
    expect(stderr).toContain(told);
  });

  test("every command has help that ends with 0", async () => {
    const groups = [
      "start",
      "chat",
      "doctor",
      "session",
      "agent",
      "env",
      "file",
      "skill",
      "hand",
      "hand-agent",
      "key",
      "workspace",
      "server",
    ];
    for (const group of groups) {
      const { code, stdout } = await installation.tendon([group, "--help"]);
      expect({ group, code }).toEqual({ group, code: 0 });
      expect(stdout).toMatch(/usage/i);
    }
  });
});

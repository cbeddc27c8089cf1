/** Clients that share no code with us: other languages' gRPC libraries, `buf curl` and plain curl, against the built programs. */
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { startDatabasePlatform } from "../kit/database-platform.ts";
import type { Platform } from "../kit/platform.ts";
import {
  BUILD_WITHIN_MS,
  buildCpp,
  buildGo,
  buildPython,
  createWorkshop,
  type Missing,
  missingForCpp,
  missingForGo,
  missingForPython,
  PYTHON,
  root,
  run,
  runBuf,
  type Workshop,
} from "./toolchain.ts";

let platform: Platform;
let workshop: Workshop;
/** Compilers are at work while the platform starts and the first clients run. */
const builds: (() => Promise<unknown>)[] = [];
let building: Promise<unknown>;

beforeAll(async () => {
  workshop = await createWorkshop();
  building = Promise.allSettled(builds.map((build) => build()));
  platform = await startDatabasePlatform();
});

afterAll(async () => {
  await platform?.stop();
  await building;
  await workshop?.remove();
});

const credentials = () => ({ TENDON_ADDRESS: platform.address, TENDON_API_KEY: platform.adminKey });

/** Name of a check in the foreign program → what it shows. */
type Checks = Readonly<Record<string, string>>;

const COMMON_CHECKS: Checks = {
  reflection: "lists the services by reflection",
  health: "reads the standard health service, once and as a stream",
  session: "runs a session from its first message to idle and sees every position once and in order (L4)",
  deadline: "sees DEADLINE_EXCEEDED on a stream whose deadline passes",
  cancel: "cancels a stream and goes on with the connection",
  error_details: "reads reason and field path from the error details in the trailers",
  large_message: "is refused a message above 4 MiB with RESOURCE_EXHAUSTED and goes on with the connection",
};

interface ForeignClient {
  missing: () => Promise<Missing>;
  /** Gives a program that takes a check's name. */
  build: (folder: string) => Promise<(check: string) => Promise<string>>;
  checks: Checks;
}

function describeClient(title: string, { missing, build, checks }: ForeignClient): void {
  describe(title, () => {
    let absent: Missing;
    let built: Promise<void>;
    let runCheck: (check: string) => Promise<string>;

    builds.push(() => {
      built = prepare();
      return built;
    });
    async function prepare(): Promise<void> {
      absent = await missing();
      if (absent === undefined) runCheck = await build(workshop.folder);
    }
    beforeAll(() => built, BUILD_WITHIN_MS + 180_000);

    beforeEach((context) => {
      if (absent !== undefined) context.skip(absent);
    });

    test.for(Object.entries(checks))("%s: it %s", async ([check]) => {
      await runCheck(check);
    });
  });
}

describeClient("a client in Python", {
  missing: missingForPython,
  build: async (folder) => {
    const stubs = await buildPython(folder);
    const file = join(root, "test/interop/python/checks.py");
    const env = { PYTHONPATH: stubs, TENDON_STUBS: stubs, PYTHONDONTWRITEBYTECODE: "1" };
    return (check) => run(PYTHON, [file, check], { env: { ...credentials(), ...env } });
  },
  checks: {
    ...COMMON_CHECKS,
    retry: "sends an event twice and gets the first position again (L2)",
    trailers: "reads binary trailers of failed unary calls and streams, and none of good ones",
    paging: "pages through a list, newest first, and is told of a bad page token",
    hand_agent_execute:
      "is a hand agent that enrols, connects, provisions a hand and runs a call, which is not run twice (X1)",
    hand_agent_cancel: "is a hand agent whose call is cancelled",
    hand_agent_time_limit: "is a hand agent whose call runs into its time limit, with all that it started",
    hand_agent_session: "is a hand agent that runs the tool call of a session",
  },
});

describeClient("a client in Go", {
  missing: missingForGo,
  build: async (folder) => {
    const program = await buildGo(folder);
    return (check) => run(program, [check], { env: credentials() });
  },
  checks: COMMON_CHECKS,
});

describeClient("a client in C++", {
  missing: missingForCpp,
  build: async (folder) => {
    const program = await buildCpp(folder);
    return (check) => run(program, [check], { env: credentials() });
  },
  checks: COMMON_CHECKS,
});

const CREATE_AGENT = "/tendon.v1.AgentService/CreateAgent";
const NO_NAME = { spec: { name: "" } };

describe("buf curl", () => {
  const reflecting = ["curl", "--http2-prior-knowledge", "--protocol", "grpc"];
  const authorization = () => ["--header", `Authorization: Bearer ${platform.adminKey}`];

  test("lists services and their methods by reflection", async () => {
    const services = (await runBuf([...reflecting, "--list-services", platform.url])).trim().split("\n");
    expect(services).toEqual(
      expect.arrayContaining([
        "tendon.v1.SessionService",
        "tendon.v1.HandAgentService",
        "grpc.health.v1.Health",
      ]),
    );
    const methods = await runBuf([...reflecting, "--list-methods", platform.url]);
    expect(methods.split("\n")).toContain("tendon.v1.SessionService/EmitEvents");
  });

  test("calls over gRPC with nothing but reflection", async () => {
    const data = JSON.stringify({ spec: { name: "by reflection" } });
    const args = [...reflecting, ...authorization(), "--data", data, `${platform.url}${CREATE_AGENT}`];
    expect(JSON.parse(await runBuf(args))).toMatchObject({
      agent: { version: 1, spec: { name: "by reflection" } },
    });
  });

  test.for(["grpc", "connect", "grpcweb"])(
    "calls, streams and fails with a reason over %s",
    async (protocol) => {
      const http2 = protocol === "grpc" ? ["--http2-prior-knowledge"] : [];
      const call = (method: string, data: object) => {
        const request = [
          "--schema",
          ".",
          "--data",
          JSON.stringify(data),
          `${platform.url}/tendon.v1.${method}`,
        ];
        return runBuf(["curl", ...http2, "--protocol", protocol, ...authorization(), ...request]);
      };
      const { agent } = JSON.parse(await call("AgentService/CreateAgent", { spec: { name: protocol } }));
      expect(agent.spec).toEqual({ name: protocol });
      const payload = JSON.stringify({ content: [{ type: "text", text: "hello" }] });
      const created = await call("SessionService/CreateSession", {
        agentId: agent.id,
        initialEvents: [{ type: "user.message", payload }],
      });
      const sessionId = JSON.parse(created).session.id;
      const read = JSON.parse(
        await call("SessionService/ReadPayload", { sessionId, eventId: await firstEvent(sessionId) }),
      );
      expect(Buffer.from(read.chunk, "base64").toString()).toBe(payload);
      await expect(call("AgentService/CreateAgent", NO_NAME)).rejects.toThrow(
        /"invalid_argument"(.|\n)*"google.rpc.ErrorInfo"/,
      );

      async function firstEvent(id: string): Promise<string> {
        return JSON.parse(await call("SessionService/GetEvents", { sessionId: id, limit: 1 })).events[0].id;
      }
    },
  );
});

describe("curl with JSON over HTTP/1.1", () => {
  const post = async (path: string, body: object, key = platform.adminKey) => {
    const header = ["--header", "content-type: application/json", "--header", `authorization: Bearer ${key}`];
    const args = ["--silent", "--show-error", "--max-time", "20", "--write-out", "\n%{http_code}", ...header];
    const out = await run("curl", [...args, "--data", JSON.stringify(body), `${platform.url}${path}`]);
    const [status, ...json] = out.split("\n").reverse();
    return { status: Number(status), body: JSON.parse(json.reverse().join("\n")) };
  };

  test("makes an agent and a session and follows its log to idle", async () => {
    const { body: made } = await post(CREATE_AGENT, { spec: { name: "curl", tools: [{ handToolset: {} }] } });
    const payload = JSON.stringify({ content: [{ type: "text", text: "run: echo $((6 * 7)) from curl" }] });
    const { status, body } = await post("/tendon.v1.SessionService/CreateSession", {
      agentId: made.agent.id,
      initialEvents: [{ type: "user.message", payload }],
    });
    expect([status, body.session.id]).toEqual([200, expect.stringMatching(/^sesn_/)]);
    const events = async () =>
      (await post("/tendon.v1.SessionService/GetEvents", { sessionId: body.session.id })).body.events;
    await expect
      .poll(async () => (await events()).at(-1).type, { timeout: 60_000 })
      .toBe("session.status_idle");
    const answers = (await events()).filter(({ type }: { type: string }) => type === "agent.message");
    expect(answers.at(-1).payload).toContain("42 from curl");
  });

  test("is told with HTTP status, code, reason and field path what was wrong", async () => {
    const { status, body } = await post(CREATE_AGENT, NO_NAME);
    expect([status, body.code]).toEqual([400, "invalid_argument"]);
    expect(body.details[0].debug).toMatchObject({
      reason: "INVALID_FIELD",
      metadata: { field: "spec.name" },
    });
    const unknownKey = await post(CREATE_AGENT, NO_NAME, "nobody-has-this-key");
    expect([unknownKey.status, unknownKey.body.code]).toEqual([401, "unauthenticated"]);
    const unknownSession = await post("/tendon.v1.SessionService/GetSession", { sessionId: "sesn_nothing" });
    expect([unknownSession.status, unknownSession.body.code]).toEqual([404, "not_found"]);
  });

  test("is refused a body above 4 MiB, and the server goes on", async () => {
    const file = join(workshop.folder, "large.json");
    await writeFile(file, JSON.stringify({ spec: { name: "x".repeat(5 * 1024 * 1024) } }));
    const header = [
      "--header",
      "content-type: application/json",
      "--header",
      `authorization: Bearer ${platform.adminKey}`,
    ];
    const args = ["--silent", "--max-time", "20", ...header, "--data-binary", `@${file}`];
    const answer = JSON.parse(await run("curl", [...args, `${platform.url}${CREATE_AGENT}`]));
    expect(answer.code).toBe("resource_exhausted");
    expect((await post(CREATE_AGENT, { spec: { name: "after" } })).status).toBe(200);
  });
});

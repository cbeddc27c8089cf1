/** An environment's network, from the server's command to what a program in the hand finds; with the agent's real program. */
import { create } from "@bufbuild/protobuf";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import {
  EnvironmentSpecSchema,
  NetworkMode,
  type NetworkSchema,
} from "../../proto/gen/tendon/v1/environment_pb.js";
import type { ExecutionResult } from "../../proto/gen/tendon/v1/hand_pb.js";
import { type AgentProgram, makeAgentDir, startAgentProgram, tokenFile } from "../kit/hand-agent-program.ts";
import { whyNoPrivateNetwork } from "../kit/private-network.ts";
import { type ScriptedHandServer, startScriptedHandServer } from "../kit/scripted-hand-server.ts";

describe.skipIf(whyNoPrivateNetwork() !== undefined)("the network of an environment", () => {
  let dir: Awaited<ReturnType<typeof makeAgentDir>>;
  let server: ScriptedHandServer;
  let agent: AgentProgram | undefined;

  beforeEach(async () => {
    dir = await makeAgentDir();
    server = await startScriptedHandServer();
  });
  afterEach(async () => {
    agent?.process.kill("SIGKILL");
    await agent?.ended;
    agent = undefined;
    await server.close();
    await dir.remove();
  });

  async function startAgent(isolation: string, connection: number): Promise<void> {
    const token = await tokenFile(dir.path, server.joinToken);
    agent = startAgentProgram(
      ["--url", server.url, "--data-dir", `${dir.path}/data`, "--token-file", token],
      {
        TENDON_HAND_AGENT_ISOLATION: isolation,
      },
    );
    await server.connection(connection, 60_000);
  }

  const environment = (network: Parameters<typeof create<typeof NetworkSchema>>[1]) => ({
    environment: create(EnvironmentSpecSchema, { name: "e", network, provisionTimeoutMs: 60_000 } as never),
  });
  const limited = environment({ mode: NetworkMode.LIMITED, allowedHosts: ["web.example"] });
  const textOf = ({ content }: ExecutionResult) =>
    (JSON.parse(content) as { text: string }[]).map(({ text }) => text).join("\n");
  let calls = 0;
  async function bash(handId: string, command: string): Promise<string> {
    const key = `call_${calls++}`;
    server.bash(key, handId, command);
    return textOf(await server.result(key, 60_000));
  }
  const denied = "curl -s -m 10 -w '%{http_code}' -o /dev/null http://evil.example/; true";
  const interfaces = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' \\n'";

  test("none and limited are kept, also by an agent that was killed and started again", async () => {
    await startAgent("bubblewrap", 0);
    expect(await server.provision("hand_none", environment({ mode: NetworkMode.NONE }))).toMatchObject({
      reason: "",
    });
    expect(await server.provision("hand_limited", limited)).toMatchObject({ reason: "" });
    expect(await bash("hand_none", interfaces)).toBe("lo");
    expect(await bash("hand_none", denied)).toBe("000");
    expect(await bash("hand_limited", interfaces)).toBe("lo");
    expect(await bash("hand_limited", denied)).toBe("403");
    agent!.process.kill("SIGKILL");
    await agent!.ended;
    await startAgent("bubblewrap", 1);
    // Each first call says that the shell is new.
    expect(await bash("hand_none", interfaces)).toMatch(/\nlo$/);
    expect(await bash("hand_limited", denied)).toMatch(/\n403$/);
    expect(await bash("hand_limited", interfaces)).toBe("lo");
  }, 180_000);

  test("a hand whose network cannot be kept is not made, and the server is told why", async () => {
    await startAgent("uid", 0);
    for (const spec of [environment({ mode: NetworkMode.NONE }), limited]) {
      expect(await server.provision("hand_1", spec)).toMatchObject({
        reason: "PROVISION_FAILED",
        message: expect.stringMatching(/cannot keep hands from the network with the isolation "uid"/),
      });
    }
  });
});

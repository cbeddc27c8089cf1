/** The agent where it is meant for: a network that leads out through a proxy alone, with an authority of its own. */
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { eventually } from "../kit/eventually.ts";
import { type AgentProgram, startAgentProgram, tokenFile } from "../kit/hand-agent-program.ts";
import { repository } from "../kit/owner-process.ts";
import { PrivateNetwork, whyNoPrivateNetwork } from "../kit/private-network.ts";
import { type ScriptedHandServer, startScriptedHandServer } from "../kit/scripted-hand-server.ts";
import { createCertificates, type TestCertificates } from "../kit/test-certificates.ts";
import { testProgram } from "../kit/test-program.ts";

const PASSWORD = "s3cret of the proxy";
const NAME = "server.test:8443";
const SYSTEM_BUNDLE = "/etc/ssl/certs/ca-certificates.crt";

const why = whyNoPrivateNetwork();

describe.skipIf(why !== undefined)(
  `in a closed network${why === undefined ? "" : ` (skipped: ${why})`}`,
  () => {
    let certificates: TestCertificates;
    let network: PrivateNetwork;
    let folder: string;
    let server: ScriptedHandServer;
    let agent: AgentProgram | undefined;
    const cleanups: (() => Promise<unknown> | unknown)[] = [];

    beforeAll(async () => {
      certificates = await createCertificates();
      network = new PrivateNetwork();
    });
    afterAll(async () => {
      await network?.remove();
      await certificates?.remove();
    });
    beforeEach(async () => {
      folder = await mkdtemp(join(tmpdir(), "tendon-closed-"));
      server = await startScriptedHandServer({ tls: await certificates.issue("server") });
      cleanups.push(() => server.close());
    });
    afterEach(async () => {
      agent?.process.kill("SIGTERM");
      await agent?.ended;
      agent = undefined;
      for (let cleanup = cleanups.pop(); cleanup; cleanup = cleanups.pop()) await cleanup();
      await rm(folder, { recursive: true, force: true });
    });

    /** The server, as a file that the proxy can reach from its network. */
    async function socketOfServer(): Promise<string> {
      const path = join(folder, "server.sock");
      const sockets = new Set<net.Socket>();
      const door = net.createServer((inner) => {
        const outer = net.connect(server.port, "127.0.0.1");
        for (const [from, to] of [
          [inner, outer],
          [outer, inner],
        ] as const) {
          sockets.add(from);
          from.on("error", () => {}).on("close", () => to.destroy());
          from.pipe(to);
        }
      });
      await new Promise<void>((resolve) => door.listen(path, resolve));
      cleanups.push(() => {
        for (const socket of sockets) socket.destroy();
        return new Promise((resolve) => door.close(resolve));
      });
      return path;
    }

    async function startProxy(credentials?: string): Promise<{ address: string; said: () => string[] }> {
      const settings = JSON.stringify({ credentials, destinations: { [NAME]: await socketOfServer() } });
      const file = await testProgram("test/kit/connect-proxy-program.ts");
      const program = [process.execPath, file, network.serverAddress, settings];
      const [command, ...args] = [...network.atServer, ...program];
      const child: ChildProcess = spawn(command!, args, { stdio: ["ignore", "pipe", "inherit"] });
      cleanups.push(() => {
        child.kill("SIGKILL");
        return new Promise<void>((resolve) => child.once("exit", () => resolve()));
      });
      let said = "";
      child.stdout!.setEncoding("utf8").on("data", (text) => {
        said += text;
      });
      const port = await eventually(() => /^port (\d+)$/m.exec(said)?.[1], { withinMs: 60_000 });
      return { address: `${network.serverAddress}:${port}`, said: () => said.split("\n").slice(1, -1) };
    }

    async function startAgent(env: Record<string, string>, via: string[] = []): Promise<AgentProgram> {
      const token = await tokenFile(folder, server.joinToken);
      const args = ["--url", `https://${NAME}`, "--token-file", token, "--data-dir", join(folder, "agent")];
      const file = join(repository, "dist/hand-agent.mjs");
      agent = startAgentProgram(args, env, file, [...network.atAgent, ...via]);
      return agent;
    }

    /** Sockets on which the agent's network takes connections or datagrams from others. */
    function listening(pid: number): string[] {
      return ["tcp", "tcp6", "udp", "udp6"].flatMap((protocol) =>
        readFileSync(`/proc/${pid}/net/${protocol}`, "utf8")
          .split("\n")
          .slice(1)
          .filter((line) => {
            const [, , , state = ""] = line.trim().split(/\s+/);
            return state === "0A" || (protocol.startsWith("udp") && state === "07");
          })
          .map((line) => `${protocol} ${line.trim()}`),
      );
    }

    test("it joins and runs calls through a proxy with a password, and listens on no port", async () => {
      const proxy = await startProxy(`agent:${PASSWORD}`);
      const program = await startAgent({
        HTTPS_PROXY: `http://agent:${encodeURIComponent(PASSWORD)}@${proxy.address}`,
        TENDON_CA_FILE: certificates.caFile,
        TENDON_LOG_LEVEL: "trace",
      });
      await server.connection(0, 60_000);
      await server.provision("hand_1");
      server.bash("s/1", "hand_1", "echo from behind a proxy; env; ls /proc/self/fd");
      const { content } = await server.result("s/1");
      expect(content).toContain("from behind a proxy");
      expect(listening(program.process.pid!)).toEqual([]);
      // One way out, and all of it through the proxy: joining and the connection.
      const peers = execFileSync(network.atAgent[0]!, [...network.atAgent.slice(1), "ss", "-Htn"], {
        encoding: "utf8",
      });
      // One that was for joining alone may still be ending.
      const ways = peers
        .trim()
        .split("\n")
        .map((line) => line.trim().split(/\s+/)[4]);
      expect(new Set(ways)).toEqual(new Set([proxy.address]));
      await eventually(() => proxy.said().length > 0);
      expect(new Set(proxy.said())).toEqual(new Set([`${NAME} 200`]));
      // The password stands nowhere but in the setting (S2).
      for (const text of [content, program.stderr(), program.stdout()]) {
        expect(text).not.toContain(PASSWORD);
        expect(text).not.toContain(encodeURIComponent(PASSWORD));
        expect(text).not.toContain(Buffer.from(`agent:${PASSWORD}`).toString("base64"));
      }
    });

    test("a proxy that wants another password is told in one line, without the one that was tried", async () => {
      const proxy = await startProxy(`agent:${PASSWORD}`);
      const program = await startAgent({
        HTTPS_PROXY: `http://agent:wrong-one@${proxy.address}`,
        TENDON_CA_FILE: certificates.caFile,
      });
      const line = await eventually(
        () =>
          program
            .stderr()
            .split("\n")
            .find((each) => each.includes("againInMs")),
        {
          withinMs: 60_000,
        },
      );
      expect((JSON.parse(line) as { msg: string }).msg).toMatch(
        /^could not join the server: the proxy .* server\.test:8443: status 407 \(it wants another user or password\)$/,
      );
      expect(program.stderr()).not.toContain("wrong-one");
      await eventually(() => proxy.said().length > 0);
      expect(new Set(proxy.said())).toEqual(new Set([`${NAME} 407 Proxy Authentication Required`]));
      expect(server.attempts).toBe(0);
    });

    test("a server whose authority nobody knows is not trusted, and the line says what is wrong", async () => {
      const proxy = await startProxy();
      const program = await startAgent({ HTTPS_PROXY: `http://${proxy.address}` });
      const line = await eventually(
        () =>
          program
            .stderr()
            .split("\n")
            .find((each) => each.includes("againInMs")),
        {
          withinMs: 60_000,
        },
      );
      expect((JSON.parse(line) as { msg: string }).msg).toMatch(/certificate/);
      expect(server.agents.size).toBe(0);
    });

    test("an authority that the machine trusts is trusted", async () => {
      const proxy = await startProxy();
      const script = `mount --bind ${certificates.caFile} ${SYSTEM_BUNDLE} && exec "$@"`;
      await startAgent({ HTTPS_PROXY: `http://${proxy.address}` }, [
        ...["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", script, "sh"],
      ]);
      await server.connection(0, 60_000);
      await server.provision("hand_1");
      server.bash("s/1", "hand_1", "echo trusted");
      expect((await server.result("s/1")).content).toContain("trusted");
    });
  },
);

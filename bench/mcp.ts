/**
 * What the proxy adds to a call of an MCP server: the same `tools/call` through it and direct, to a server that answers at once.
 * The proxy is a program of its own; the platform's server, the MCP server and the client share the bench's process, so what they
 * take from each other is in the figures. A call without a record asks the platform's server for URL and credential each time;
 * a recorded one writes twice to the log besides, each synced to disk, before it is answered.
 */
import { join } from "node:path";
import { startCountingMcpServer } from "../test/kit/counting-mcp-server.ts";
import { eventually } from "../test/kit/eventually.ts";
import { SERVER, startMcpRig } from "../test/kit/mcp-rig.ts";
import { startProgram } from "../test/kit/program.ts";
import { bearer } from "../test/kit/vault-rig.ts";
import type { Bench, BenchContext, Figure } from "./frame/bench.ts";
import { interleave, percentile } from "./frame/measure.ts";
import { startPrivatePostgres } from "./frame/private-postgres.ts";

const ROUNDS = 20;
const PER_ROUND = 20;
const WARM_UP = 200;
/** Aims of the product, above the direct call. */
const AIM_P50_MS = 2;
const AIM_P99_MS = 10;

export const mcp: Bench = {
  name: "mcp",
  describe: "a call of an MCP server through the proxy, with a credential, against the same call direct",
  async run(context) {
    const far = await startCountingMcpServer();
    context.defer(() => far.stop());
    const { url, pool } = await startPrivatePostgres(context);
    const rig = await startMcpRig({
      database: { url, directUrl: url, pool: () => pool, drop: async () => {} },
    });
    context.defer(() => rig.stop());
    // Secrets are sealed to the key of the program that is measured.
    await rig.proxy.stop();
    const proxyUrl = await startProxy(context, rig.vault.server);
    const vaultId = await rig.vault.home.newVault();
    await rig.vault.home.addCredential(vaultId, bearer(far.url), "a-token-of-the-bench");
    const session = await rig.newSession({ servers: { [SERVER]: far.url }, vaultIds: [vaultId] });
    const call = { id: 1, method: "tools/call", params: { name: "look", arguments: {} } };
    const rounds = Math.max(1, Math.round(ROUNDS * context.scale));
    const recorded: string[] = [];
    context.say("recording what the brain means to call …");
    for (let i = 0; i < rounds * PER_ROUND + WARM_UP; i++) recorded.push(await session.uses("look"));
    const body = JSON.stringify({ jsonrpc: "2.0", ...call });
    const done = async (response: Response) => {
      const text = await response.text();
      if (!response.ok) throw new Error(`${response.status} ${text}`);
    };
    const headers = { "content-type": "application/json" };
    context.say("measuring …");
    const samples = await interleave(
      [
        { name: "direct", once: async () => done(await fetch(far.url, { method: "POST", headers, body })) },
        { name: "proxy", once: async () => done(await session.post(call, { proxyUrl })) },
        {
          name: "recorded",
          once: async () => done(await session.post(call, { proxyUrl, toolUseId: recorded.pop()! })),
        },
      ],
      { rounds, perRound: PER_ROUND, warmUp: WARM_UP },
    );
    const at = (name: string, p: number) => percentile(samples.get(name)?.ms ?? [], p);
    return [
      figure("call p50", at("proxy", 0.5), at("direct", 0.5), AIM_P50_MS),
      figure("call p99", at("proxy", 0.99), at("direct", 0.99), AIM_P99_MS),
      figure("recorded call p50", at("recorded", 0.5), at("direct", 0.5), undefined),
      figure("recorded call p99", at("recorded", 0.99), at("direct", 0.99), undefined),
    ];
  },
};

function figure(name: string, product: number, baseline: number, addedMs: number | undefined): Figure {
  const aim = addedMs === undefined ? undefined : `≤ baseline + ${addedMs} ms`;
  const met = addedMs === undefined ? undefined : product <= baseline + addedMs;
  return { figure: name, unit: "ms", product, baseline, aim, met };
}

async function startProxy(context: BenchContext, server: { dataDir: string; url: string }): Promise<string> {
  const proxy = startProgram("mcp-proxy", {
    TENDON_URL: server.url,
    TENDON_PROXY_KEY_FILE: join(server.dataDir, "proxy.key"),
    TENDON_PROXY_SEALING_KEY_FILE: join(server.dataDir, "proxy-sealing.key"),
    TENDON_PROXY_PORT: "0",
  });
  context.defer(async () => void (await proxy.end("SIGTERM")));
  const url = await eventually(() => /"url":"(http:[^"]+)"/.exec(proxy.log())?.[1], { withinMs: 20_000 });
  await eventually(async () => (await fetch(`${url}/healthz`)).ok, { withinMs: 20_000 });
  return url;
}

/**
 * The official conformance suite as the judge of the proxy: it finds the same in a reference server asked directly and through
 * relay and proxy, on both wires. What it asks for cannot be done by a proxy that changes, loses, or delays what passes.
 */
import { afterAll, beforeAll, test } from "vitest";
import { createSendToProxy } from "../../harness/mcp-client/proxy-request.ts";
import { type McpRelay, startMcpRelay } from "../../harness/mcp-relay/mcp-relay.ts";
import { judge, type Verdicts, type Wire } from "../kit/mcp-reference/judge.ts";
import { type ReferenceServer, startReferenceServer } from "../kit/mcp-reference/reference-server.ts";
import { type McpRig, SERVER, startMcpRig } from "../kit/mcp-rig.ts";

const WITHIN_MS = 240_000;
/** Extensions that neither revision requires, and the reference server does not have. */
const OPTIONAL = /^tasks-/;

let rig: McpRig;
let far: ReferenceServer;
let relay: McpRelay;
const sending = createSendToProxy(undefined);

beforeAll(async () => {
  far = await startReferenceServer();
  rig = await startMcpRig();
  const { id, token } = await rig.newSession({ servers: { [SERVER]: far.url } });
  const access = { url: rig.proxy.proxyUrl, sessionId: id, token: () => token, send: sending.send };
  relay = await startMcpRelay({ access });
});
afterAll(async () => {
  await relay?.close();
  sending.close();
  await rig?.stop();
  await far?.stop();
});

/** What a scenario that has to pass does not say. */
const complaints = (verdicts: Verdicts) =>
  Object.entries(verdicts)
    .filter(([scenario]) => !OPTIONAL.test(scenario))
    .flatMap(([scenario, checks]) => checks.map((check) => `${scenario}: ${check}`))
    .filter((line) => !/ (SUCCESS|SKIPPED)$/.test(line));

// Side by side: the suite waits more than it works.
test.concurrent.for<[Wire, number]>([
  ["2025-11-25", 33],
  ["2026-07-28", 37],
])(
  "on the wire of %s the suite finds the same through the proxy as directly, and that all is well",
  {
    timeout: WITHIN_MS,
  },
  async ([wire, scenarios], { expect }) => {
    const [direct, through] = await Promise.all([judge(far.url, wire), judge(relay.urlOf(SERVER), wire)]);
    expect(complaints(direct)).toEqual([]);
    expect(Object.keys(direct).length).toBeGreaterThanOrEqual(scenarios);
    expect(through).toEqual(direct);
  },
);

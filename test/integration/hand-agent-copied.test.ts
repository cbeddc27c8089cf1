/** Two real agents with copies of one data directory, at a real hands area over a real database. */
import { cpSync, existsSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { createLogger, type Logger } from "../../kit/log.ts";
import { eventually } from "../kit/eventually.ts";
import { agentInProcess, makeAgentDir } from "../kit/hand-agent-program.ts";
import { HandRig } from "../kit/hand-rig.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";

let database: TestDatabase;
let rig: HandRig;
beforeAll(async () => {
  database = await createTestDatabase();
  rig = new HandRig({ pool: database.pool() });
  await rig.start();
});
afterAll(async () => {
  await rig?.stop();
  await database?.drop();
});

function listeningLog(): { log: Logger; lines: string[] } {
  const lines: string[] = [];
  const log = createLogger("test", "silent");
  log.error = ((...words: unknown[]) => lines.push(String(words.at(-1)))) as never;
  return { log, lines };
}

test("the newer one works on, the older one waits for its end, and both say that there are two (S6)", async () => {
  const [first, second] = [await makeAgentDir(), await makeAgentDir()];
  const older = listeningLog();
  const newer = listeningLog();
  const joinToken = await rig.joinToken();
  const a = agentInProcess({ url: rig.url, dataDir: first.path, joinToken, log: older.log, drainMs: 100 });
  const b = agentInProcess({ url: rig.url, dataDir: second.path, log: newer.log, drainMs: 100 });
  try {
    await a.start();
    await eventually(() => rig.area.connectedAgents() === 1);
    // The last that it writes for a while: what is copied stays as it is meanwhile.
    await eventually(() => existsSync(join(first.path, "connection-number")));
    const isLock = (path: string) => path.includes("agent.lock");
    cpSync(first.path, second.path, { recursive: true, filter: (path) => !isLock(path) });
    await b.start();
    const says = ({ lines }: { lines: string[] }, what: RegExp) => lines.some((line) => what.test(line));
    // First that it was replaced, then that it may not come back.
    await eventually(() => older.lines.length >= 2);
    expect(older.lines.every((line) => line.includes("two processes run with copies"))).toBe(true);
    await eventually(() => says(newer, /another process tries to connect with this agent's identity/));
    const { handAgents } = await eventually(async () => {
      const listed = await rig.admin.listHandAgents({});
      return listed.handAgents[0]?.duplicateSeenAt === undefined ? undefined : listed;
    });
    expect(handAgents).toMatchObject([{ online: true, generation: 2n }]);
  } finally {
    await Promise.all([a.stop(), b.stop()]);
    await first.remove();
    await second.remove();
  }
});

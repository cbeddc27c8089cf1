/** A data directory for each test and what runs on it: Postgres of the test's own, owners that are programs; none is left behind. */
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeAll, beforeEach, expect } from "vitest";
import { systemClock } from "../../kit/clock.ts";
import { createLogger } from "../../kit/log.ts";
import {
  type EmbeddedPostgres,
  startEmbeddedPostgres,
} from "../../server/store/embedded/embedded-postgres.ts";
import { openDirectConnection } from "../../server/store/postgres/direct-connection.ts";
import { type OwnerProcess, type OwnerSetting, startOwner } from "./owner-process.ts";
import { testProgram } from "./test-program.ts";

export interface EmbeddedRig {
  /** Of the test's own, removed after it. */
  folder: string;
  /** In the folder, not made yet. A test may choose another. */
  dataDir: string;
  /** In the test's own process; stopped after the test. */
  start(): Promise<EmbeddedPostgres>;
  /** What a start says that has to fail. */
  refusal(): Promise<{ problem: string | undefined; message: string }>;
  /** A program that starts it; ended after the test. */
  owner(setting?: OwnerSetting): OwnerProcess;
  /** Every Postgres whose database is under the folder, and its workers. */
  postgresPids(): number[];
}

const log = createLogger("test", "silent");

export function useEmbeddedRig(): EmbeddedRig {
  const started: EmbeddedPostgres[] = [];
  const owners: OwnerProcess[] = [];
  let ownerFile = "";
  const open = () => startEmbeddedPostgres({ dataDir: rig.dataDir, clock: systemClock, log });
  const rig: EmbeddedRig = {
    folder: "",
    dataDir: "",
    async start() {
      const postgres = await open();
      started.push(postgres);
      return postgres;
    },
    refusal: () =>
      open().then(
        () => {
          throw new Error("it started");
        },
        (error: Error & { problem?: string }) => ({ problem: error.problem, message: error.message }),
      ),
    owner(setting) {
      const process = startOwner(ownerFile, rig.dataDir, setting);
      owners.push(process);
      return process;
    },
    postgresPids: () => postgresOn(rig.folder),
  };

  beforeAll(async () => {
    ownerFile = await testProgram("test/integration/fixtures/embedded-owner.ts");
  });
  beforeEach(() => {
    rig.folder = mkdtempSync(join(tmpdir(), "tendon-embedded-"));
    rig.dataDir = join(rig.folder, "data");
  });

  afterEach(async () => {
    for (const postgres of started.splice(0)) await postgres.stop();
    for (const owner of owners.splice(0)) {
      owner.process.kill("SIGTERM");
      await owner.ended;
    }
    const left = rig.postgresPids();
    for (const pid of left) process.kill(pid, "SIGKILL");
    rmSync(rig.folder, { recursive: true, force: true });
    expect(left, "Postgres processes left behind").toEqual([]);
  });

  return rig;
}

function postgresOn(path: string): number[] {
  const lines = execFileSync("ps", ["-eww", "-o", "pid=,ppid=,stat=,args="], { encoding: "utf8" }).split(
    "\n",
  );
  const rows = lines.flatMap((line) => {
    const [, pid, ppid, stat, args] = /^\s*(\d+)\s+(\d+)\s+(\S+)\s+(.*)$/.exec(line) ?? [];
    return pid && !stat?.startsWith("Z") ? [{ pid: Number(pid), ppid: Number(ppid), args: args ?? "" }] : [];
  });
  const masters = rows.filter(({ args }) => args.includes(`-D ${path}/`)).map(({ pid }) => pid);
  return [...masters, ...rows.filter(({ ppid }) => masters.includes(ppid)).map(({ pid }) => pid)];
}

/** Over a connection of its own. */
export async function query(url: string, sql: string): Promise<Record<string, unknown>[]> {
  const connection = await openDirectConnection({ url, applicationName: "test" });
  try {
    return await connection.query(sql);
  } finally {
    await connection.close();
  }
}

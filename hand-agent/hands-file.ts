/** What the agent remembers of its hands across restarts: one small file, replaced as a whole. */
import { open, readFile, rename } from "node:fs/promises";
import { join } from "node:path";
import type { JsonValue } from "./drivers/driver.ts";
import type { MountConfig } from "./mounts/mount-config.ts";
import type { RepositoryOutcome } from "./repositories/outcome.ts";

export interface HandRecord {
  readonly handId: string;
  readonly driver: string;
  /** A hand is noted before it is made, so that a half-made one is found and removed. */
  state: "provisioning" | "ready" | "parked";
  /** What the driver finds it by. */
  handle: JsonValue;
  /** Decimal digits; only ever grows. */
  ownerNumber: string;
  /** How long its calls may show no progress; absent or 0 means the default. */
  readonly stallTimeoutMs?: number;
  /** Absent for none. */
  readonly mounts?: MountConfig | undefined;
  /** What became of its repositories, in their order; absent for none. */
  repositories?: readonly RepositoryOutcome[];
  /** Installation that asked for it; nobody else may have it reaped. */
  readonly installationId: string;
  /** It was there when the server's database was set back: until then (Unix time in ms) it is not reaped. */
  keepUnownedUntilMs?: number;
}

export class HandsFile {
  private readonly path: string;
  private turn: Promise<void> = Promise.resolve();
  private queued: readonly HandRecord[] | undefined;

  constructor(dataDir: string) {
    this.path = join(dataDir, "hands.json");
  }

  /** Throws an Error with one clear line when the file cannot be understood. */
  async load(): Promise<HandRecord[]> {
    let text: string;
    try {
      text = await readFile(this.path, "utf8");
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === "ENOENT") return [];
      throw error;
    }
    try {
      const { version, hands } = JSON.parse(text) as { version: number; hands: HandRecord[] };
      if (version === 1 && Array.isArray(hands)) return hands;
    } catch {
      // said below
    }
    throw new Error(
      `${this.path} is not a list of hands that this version understands; move it away to go on`,
    );
  }

  /** Resolves when these records are on disk. Saves that wait for the disk together are written as the last of them. */
  save(records: readonly HandRecord[]): Promise<void> {
    this.queued = structuredClone(records) as HandRecord[];
    const done = this.turn.then(() => this.write());
    this.turn = done.catch(() => {});
    return done;
  }

  /** Resolves when nothing is being written. */
  settled(): Promise<void> {
    return this.turn;
  }

  private async write(): Promise<void> {
    const records = this.queued;
    if (records === undefined) return;
    this.queued = undefined;
    const fresh = `${this.path}.new`;
    const file = await open(fresh, "w", 0o600);
    try {
      await file.writeFile(`${JSON.stringify({ version: 1, hands: records })}\n`);
      await file.datasync();
    } finally {
      await file.close();
    }
    await rename(fresh, this.path);
  }
}

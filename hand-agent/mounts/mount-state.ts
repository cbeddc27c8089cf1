/** What the agent knows of a hand's mounts, on disk: without it, a file that others changed would look like one that the hand did. */
import { mkdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";

export interface StoreState {
  /** Of the store; 0 before the first copy. */
  revision: string;
  /** By path, the digest of what store and hand both had last. */
  files: Record<string, string>;
  /** Files that the store will not have, by what was told of them: a digest, or why it has none. */
  refused: Record<string, string>;
  /** Texts of the store that could not be put into the hand yet. */
  wanted: string[];
}

export interface LogState {
  ownerNumber: string;
  sessionId: string;
  position: string;
  /** Length of the file. */
  bytes: number;
}

export interface MountState {
  stores: Record<string, StoreState>;
  log: LogState | undefined;
  /** Files that the session was given, by path: their digests. */
  uploads: Record<string, string>;
  /** What was offered as output, by path: what told it from what is there now. */
  outputs: Record<string, string>;
  /** What the model has to hear with its next call. */
  untold: string[];
}

export function newStoreState(): StoreState {
  return { revision: "0", files: {}, refused: {}, wanted: [] };
}

export class MountStates {
  private readonly dir: string;

  constructor(dataDir: string) {
    this.dir = join(dataDir, "mounts");
  }

  /** A file that is missing or not understood is as if nothing were known. */
  async read(handId: string): Promise<MountState> {
    try {
      const {
        version,
        stores,
        log,
        untold = [],
        uploads = {},
        outputs = {},
      } = JSON.parse(await readFile(this.pathOf(handId), "utf8")) as MountState & {
        version: number;
      };
      if (version === 1 && typeof stores === "object") return { stores, log, uploads, outputs, untold };
    } catch {
      // said below
    }
    return { stores: {}, log: undefined, uploads: {}, outputs: {}, untold: [] };
  }

  async write(handId: string, state: MountState): Promise<void> {
    await mkdir(this.dir, { recursive: true, mode: 0o700 });
    const path = this.pathOf(handId);
    await writeFile(`${path}.new`, JSON.stringify({ version: 1, ...state }), { mode: 0o600 });
    await rename(`${path}.new`, path);
  }

  async remove(handId: string): Promise<void> {
    await rm(this.pathOf(handId), { force: true });
  }

  private pathOf(handId: string): string {
    return join(this.dir, `${handId}.json`);
  }
}

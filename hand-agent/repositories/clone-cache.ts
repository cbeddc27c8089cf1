/**
 * Clones that this agent's hands have made, kept as git bundles so that the next clone fetches only what is new. Each is for
 * one repository and one credential's rights, and is given out once the host has said, in the asking session's name, that
 * these rights hold. Git checks every object by its name, so a bundle can be missing or bad, but never a forgery.
 *
 * Two files for each: `<key>.bundle` and `<key>.tips`. Whoever was used least recently goes when there are too many bytes.
 */
import { createHash, randomBytes } from "node:crypto";
import { createReadStream } from "node:fs";
import { mkdir, open, readdir, readFile, rename, rm, stat, utimes, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Clock } from "../../kit/clock.ts";
import { normaliseGitUrl } from "../../kit/vault/destination.ts";

const UNFINISHED = ".new";

export interface CloneCacheOptions {
  readonly dir: string;
  /** Of all bundles; 0 keeps none. One may have a quarter of it. */
  readonly maxBytes: number;
  /** Whose clones these are: an agent that joins elsewhere finds nothing of before. */
  readonly owner: () => string;
  readonly clock: Clock;
}

export interface Kept {
  /** Changes when the repository does. */
  readonly tips: string;
  read(): AsyncIterable<Uint8Array>;
}

export class CloneCache {
  private readonly options: CloneCacheOptions;
  private tidying: Promise<void> = Promise.resolve();
  private prepared: Promise<void> | undefined;

  constructor(options: CloneCacheOptions) {
    this.options = options;
  }

  /** Undefined where nothing is kept: nobody says whose rights these are, or this agent keeps none. */
  keyOf(url: string, rights: string): string | undefined {
    if (rights === "" || this.options.maxBytes === 0) return undefined;
    const parts = JSON.stringify([this.options.owner(), normaliseGitUrl(url) ?? url, rights]);
    return createHash("sha256").update(parts).digest("hex");
  }

  async find(key: string): Promise<Kept | undefined> {
    const { bundle, tips } = this.filesOf(key);
    try {
      const text = await readFile(tips, "utf8");
      const now = new Date(this.options.clock.nowMs());
      await utimes(bundle, now, now);
      return { tips: text, read: () => createReadStream(bundle) };
    } catch {
      return undefined;
    }
  }

  /** Keeps what comes if `isWhole` says so at its end and there is room for so much; what was kept before goes. */
  async store(
    key: string,
    tips: string,
    bytes: AsyncIterable<Uint8Array>,
    isWhole: () => Promise<boolean>,
  ): Promise<boolean> {
    const { dir, maxBytes } = this.options;
    const mostOfOne = Math.floor(maxBytes / 4);
    this.prepared ??= this.prepare();
    await this.prepared;
    const fresh = join(dir, `${randomBytes(8).toString("hex")}${UNFINISHED}`);
    const files = this.filesOf(key);
    try {
      const isKept = (await writeAtMost(fresh, bytes, mostOfOne)) && (await isWhole());
      if (!isKept) return false;
      await rm(files.tips, { force: true });
      await rename(fresh, files.bundle);
      await writeFile(files.tips, tips, { mode: 0o600 });
      await this.tidy();
      return true;
    } finally {
      await rm(fresh, { force: true });
    }
  }

  /** Removes what a crash has left. */
  private async prepare(): Promise<void> {
    const { dir } = this.options;
    await mkdir(dir, { recursive: true, mode: 0o700 });
    const left = (await readdir(dir)).filter((name) => name.endsWith(UNFINISHED));
    await Promise.all(left.map((name) => rm(join(dir, name), { force: true })));
  }

  /** One at a time. */
  private tidy(): Promise<void> {
    this.tidying = this.tidying.then(() => this.removeOldest()).catch(() => {});
    return this.tidying;
  }

  private async removeOldest(): Promise<void> {
    const { dir, maxBytes } = this.options;
    const names = (await readdir(dir)).filter((name) => name.endsWith(".bundle"));
    const found = await Promise.all(
      names.map(async (name) => ({
        key: name.slice(0, -".bundle".length),
        ...(await sizeAndAge(join(dir, name))),
      })),
    );
    let left = found.reduce((sum, { size }) => sum + size, 0);
    for (const { key, size } of found.sort((one, other) => one.usedMs - other.usedMs)) {
      if (left <= maxBytes) return;
      const { bundle, tips } = this.filesOf(key);
      await rm(tips, { force: true });
      await rm(bundle, { force: true });
      left -= size;
    }
  }

  private filesOf(key: string) {
    const { dir } = this.options;
    return { bundle: join(dir, `${key}.bundle`), tips: join(dir, `${key}.tips`) };
  }
}

async function sizeAndAge(path: string): Promise<{ size: number; usedMs: number }> {
  const found = await stat(path).catch(() => undefined);
  return { size: found?.size ?? 0, usedMs: found?.mtimeMs ?? 0 };
}

/** False when there was more than that. All is read, so that its writer ends. */
async function writeAtMost(path: string, bytes: AsyncIterable<Uint8Array>, most: number): Promise<boolean> {
  const file = await open(path, "wx", 0o600);
  let written = 0;
  try {
    for await (const chunk of bytes) {
      written += chunk.length;
      if (written <= most) await file.write(chunk);
    }
  } finally {
    await file.close();
  }
  return written > 0 && written <= most;
}

/**
 * The Postgres binaries that come as an npm package, one package per platform.
 *
 * npm packages cannot hold symbolic links, so the shared libraries' links (`libpq.so.5` → `libpq.so.5.18`) are made here,
 * once: beside the libraries, or, where that folder cannot be written, in a folder of ours that the loader is pointed to.
 */
import { access, chmod, constants, mkdir, readFile, readlink, rm, symlink } from "node:fs/promises";
import { createRequire } from "node:module";
import { basename, dirname, join, resolve } from "node:path";
import { EmbeddedPostgresError, fileProblem } from "./embedded-postgres-error.ts";

export interface Binaries {
  /** The folder that holds `bin`, `lib` and `share`. */
  root: string;
  initdb: string;
  postgres: string;
  /** Postgres' major version. */
  major: number;
  /** What the loader needs in the environment; empty where the links stand beside the libraries. */
  environment: Record<string, string>;
}

/** Finds this platform's package and makes its links; `linkDir` is used when the package is read-only. */
export async function prepareBinaries(linkDir: string): Promise<Binaries> {
  const { root, major } = await locatePackage();
  const binaries = binariesAt(root, major);
  await makeExecutable(binaries);
  const missing = await linkLibraries(root);
  if (missing.length === 0) return binaries;
  return { ...binaries, environment: await linkElsewhere(root, missing, linkDir) };
}

export function binariesAt(root: string, major: number): Binaries {
  const bin = join(root, "bin");
  return { root, major, initdb: join(bin, "initdb"), postgres: join(bin, "postgres"), environment: {} };
}

async function locatePackage(): Promise<{ root: string; major: number }> {
  const name = `@embedded-postgres/${process.platform}-${process.arch}`;
  let entry: string;
  try {
    entry = createRequire(import.meta.url).resolve(name);
  } catch (error) {
    throw new EmbeddedPostgresError(
      "unsupported",
      `The package ${name} with the Postgres binaries is not installed: run npm install without --omit=optional, or set TENDON_DATABASE_URL to a Postgres of your own.`,
      { cause: error },
    );
  }
  const folder = resolve(dirname(entry), "..");
  const { version } = JSON.parse(await readFile(join(folder, "package.json"), "utf8")) as { version: string };
  return { root: join(folder, "native"), major: Number.parseInt(version, 10) };
}

/** Some package managers drop the executable bit. */
async function makeExecutable(binaries: Binaries): Promise<void> {
  for (const path of [binaries.initdb, binaries.postgres]) {
    try {
      await access(path, constants.X_OK);
    } catch {
      await chmod(path, 0o755).catch((error) => {
        throw new EmbeddedPostgresError(
          "unsupported",
          `${path} is not executable: run chmod +x on the files beside it.`,
          {
            cause: error,
          },
        );
      });
    }
  }
}

interface Link {
  source: string;
  target: string;
}

/** Makes the links inside the package and returns those that could not be made. */
async function linkLibraries(root: string): Promise<Link[]> {
  const listed = await readFile(join(root, "pg-symlinks.json"), "utf8").catch(() => "[]");
  const missing: Link[] = [];
  for (const { source, target } of JSON.parse(listed) as Link[]) {
    const path = join(root, "..", target);
    try {
      await symlink(basename(source), path);
    } catch (error) {
      const code = (error as NodeJS.ErrnoException).code;
      if (code !== "EEXIST") missing.push({ source: join(root, "..", source), target: basename(target) });
    }
  }
  return missing;
}

async function linkElsewhere(root: string, links: Link[], linkDir: string): Promise<Record<string, string>> {
  try {
    await mkdir(linkDir, { recursive: true });
    for (const { source, target } of links) {
      const path = join(linkDir, target);
      if ((await readlink(path).catch(() => undefined)) === source) continue;
      // The package may have moved since.
      await rm(path, { force: true });
      await symlink(source, path).catch((error) => {
        if (error.code !== "EEXIST") throw error;
      });
    }
  } catch (error) {
    throw fileProblem(error, linkDir);
  }
  const path = `${linkDir}:${join(root, "lib")}`;
  return process.platform === "darwin" ? { DYLD_LIBRARY_PATH: path } : { LD_LIBRARY_PATH: path };
}

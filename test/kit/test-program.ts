/**
 * Programs that only tests start, each bundled into one file as the product's are: read from its sources by a loader, such a
 * program takes some seconds of processor time to start, every time.
 */
import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const root = fileURLToPath(new URL("../..", import.meta.url));
const built = new Map<string, Promise<string>>();

/** `source` is named from the repository's root. Gives the bundle's path, which is made once in this process. */
export function testProgram(source: string): Promise<string> {
  const path = built.get(source) ?? bundle(source);
  built.set(source, path);
  return path;
}

async function bundle(source: string): Promise<string> {
  // As deep below the root as `test/kit`, so that what is found from there is found from here.
  const name = `test/${source.replaceAll("/", "-").replace(/\.m?ts$/, "")}`;
  await promisify(execFile)(process.execPath, [`${root}scripts/build.mjs`, "--quiet", `${name}=${source}`]);
  return `${root}dist/${name}.mjs`;
}

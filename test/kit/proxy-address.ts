import { eventually } from "./eventually.ts";
import type { RunningProgram } from "./program.ts";

/** Where a proxy's program listens, once it is connected to its server. */
export async function addressOfProxy(proxy: Pick<RunningProgram, "log">): Promise<string> {
  // Its own line, not the one that names where spans go.
  const url = await eventually(() => /"url":"(http:[^"]+)","keyId"/.exec(proxy.log())?.[1]);
  await eventually(async () => (await fetch(`${url}/healthz`)).ok);
  return url;
}

/** Opens a URL in the browser of whoever sits here. */
import { spawn } from "node:child_process";
import { inheritedEnvironment } from "../config.ts";

/** `failed` is told when there is no browser, as far as that shows. The URL must be http or https. */
export function openBrowser(url: string, failed: () => void): void {
  const [command, ...args] = commandOf(process.platform);
  // Keys of Tendon are no business of a browser's.
  const env = Object.entries(inheritedEnvironment()).filter(([name]) => !name.startsWith("TENDON_"));
  const child = spawn(command, [...args, url], {
    detached: true,
    stdio: "ignore",
    env: Object.fromEntries(env),
  });
  child.once("error", failed);
  child.once("exit", (code) => {
    if (code !== 0) failed();
  });
  child.unref();
}

function commandOf(platform: NodeJS.Platform): [string, ...string[]] {
  if (platform === "darwin") return ["open"];
  // `start` would have a shell read the URL.
  if (platform === "win32") return ["rundll32", "url.dll,FileProtocolHandler"];
  return ["xdg-open"];
}

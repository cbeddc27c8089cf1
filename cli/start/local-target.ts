/** The installation of this machine that `tendon start` is about, whatever other server the environment speaks of. */
import type { CliConfig } from "../config.ts";
import type { Target } from "../connect.ts";
import { adminKeyFile, type DataDir, readAdminKey } from "../data-dir.ts";

/** TENDON_URL and TENDON_API_KEY may be meant for another server: neither is used. */
export async function localTarget(url: string, dataDir: DataDir, config: CliConfig): Promise<Target> {
  const file = adminKeyFile(dataDir);
  const own = config.TENDON_ADMIN_KEY;
  const key = own ?? (await readAdminKey(dataDir));
  const fileOrigin = key === undefined ? `there is no ${file}` : file;
  return {
    url,
    urlOrigin: "data directory",
    key,
    keyOrigin: own === undefined ? fileOrigin : "TENDON_ADMIN_KEY",
    dataDir,
    caFile: localCaFile(config),
    proxy: { httpsProxy: config.HTTPS_PROXY, noProxy: config.NO_PROXY },
  };
}

/** A certificate that signs itself is its own authority. */
export function localCaFile(config: CliConfig): string | undefined {
  return config.TENDON_CA_FILE ?? config.TENDON_TLS_CERT;
}

/** What somebody set for another server and is not used here, in a line each. */
export function ignoredHere(
  url: string,
  config: Pick<CliConfig, "TENDON_URL" | "TENDON_API_KEY">,
  urlOption?: string,
): string[] {
  const lines: string[] = [];
  for (const [name, value] of [
    ["--url", urlOption],
    ["TENDON_URL", config.TENDON_URL],
  ] as const) {
    if (value === undefined || originOf(value) === originOf(url)) continue;
    lines.push(
      `${name} (${originOf(value)}) is not used: start works with this machine's own installation, ${url}.`,
    );
  }
  if (config.TENDON_API_KEY !== undefined && lines.length > 0)
    lines.push("TENDON_API_KEY is not used either: this installation has its own admin.key.");
  return lines;
}

/** Without user and password. */
function originOf(url: string): string {
  return URL.canParse(url) ? new URL(url).origin : "no URL";
}

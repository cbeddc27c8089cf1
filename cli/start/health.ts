/** Asks a server over plain HTTP how it is. */
import { readFileSync } from "node:fs";
import http from "node:http";
import https from "node:https";
import { isIP } from "node:net";

export interface Health {
  readonly ok: boolean;
  /** What is missing, in the server's words. */
  readonly missing: readonly string[];
}

const ANSWER_WITHIN_MS = 4_000;
const MAX_BODY_BYTES = 64 * 1024;

/** Undefined when nobody answers. */
export function askHealth(
  url: string,
  path: "/healthz" | "/readyz",
  caFile?: string,
): Promise<Health | undefined> {
  return new Promise((resolve) => {
    const client = url.startsWith("https:") ? https : http;
    const target = new URL(path, url);
    const options = {
      // A server name in the TLS greeting is never an address.
      ...(isIP(target.hostname.replace(/^\[|\]$/g, "")) === 0 ? {} : { servername: "" }),
      timeout: ANSWER_WITHIN_MS,
      agent: false as const,
      ...(caFile === undefined ? {} : { ca: readPem(caFile) }),
    };
    const request = client.get(target, options, (response) => {
      let body = "";
      response.setEncoding("utf8");
      response.on("data", (part: string) => {
        if (body.length < MAX_BODY_BYTES) body += part;
      });
      response.on("error", () => resolve(undefined));
      response.on("end", () => resolve({ ok: response.statusCode === 200, missing: missingOf(body) }));
    });
    request.on("timeout", () => request.destroy());
    request.on("error", () => resolve(undefined));
  });
}

function readPem(file: string): string | undefined {
  try {
    return readFileSync(file, "utf8");
  } catch {
    return undefined;
  }
}

function missingOf(body: string): string[] {
  try {
    const { missing } = JSON.parse(body) as { missing?: unknown };
    return Array.isArray(missing) ? missing.filter((one) => typeof one === "string") : [];
  } catch {
    return [];
  }
}

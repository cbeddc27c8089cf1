/** Asks a server over plain HTTP how it is. */
import { readFileSync } from "node:fs";
import http from "node:http";
import https from "node:https";
import { isIP } from "node:net";

export interface Health {
  readonly ok: boolean;
  /** "tendon" is a server of ours, "other" something else that speaks HTTP. */
  readonly who: "tendon" | "other" | "nobody";
  /** Why nobody answered, in the words of whoever tried. */
  readonly failure?: string;
  /** What is missing, in the server's words. */
  readonly missing: readonly string[];
}

const ANSWER_WITHIN_MS = 4_000;
const MAX_BODY_BYTES = 64 * 1024;

/** What is missing while it is being started: what to do about it is for those who start programs by themselves. */
export function asAwaited(missing: string): string {
  return missing.replace(/: start one with .*$/, " yet");
}

/** Never rejects. */
export function askHealth(url: string, path: "/healthz" | "/readyz", caFile?: string): Promise<Health> {
  return new Promise((resolve) => {
    const nobody = (error: Error) =>
      resolve({ ok: false, who: "nobody", failure: error.message, missing: [] });
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
      response.on("error", nobody);
      response.on("end", () => resolve(healthOf(response.statusCode === 200, body)));
    });
    request.on("timeout", () => request.destroy(new Error("no answer in time")));
    request.on("error", nobody);
  });
}

function readPem(file: string): string | undefined {
  try {
    return readFileSync(file, "utf8");
  } catch {
    return undefined;
  }
}

function healthOf(isOk: boolean, body: string): Health {
  try {
    const { missing } = JSON.parse(body) as { missing?: unknown };
    if (Array.isArray(missing))
      return { ok: isOk, who: "tendon", missing: missing.filter((one) => typeof one === "string") };
  } catch {
    // No JSON: no server of ours.
  }
  return { ok: false, who: "other", missing: [] };
}

/** Where the engine listens, as `DOCKER_HOST` says it. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { messageOf } from "../../../kit/errors.ts";
import { HandError } from "../driver.ts";

export interface EngineSettings {
  /** `unix:///path` or `tcp://host:port`; empty means DEFAULT_ENGINE. */
  readonly host?: string;
  /** Whether `tcp://` is spoken with TLS, by the client certificate in `certPath`. */
  readonly tlsVerify?: boolean;
  /** A directory with ca.pem, cert.pem and key.pem. */
  readonly certPath?: string;
}

export type EngineAddress =
  | { readonly socketPath: string }
  | {
      readonly protocol: "http" | "https";
      readonly host: string;
      readonly port: number;
      readonly ca?: string;
      readonly cert?: string;
      readonly key?: string;
    };

export const DEFAULT_ENGINE = "unix:///var/run/docker.sock";
const PLAIN_PORT = 2375;
const TLS_PORT = 2376;

/** Throws HandError with one line for people. */
export function engineAddress(settings: EngineSettings): EngineAddress {
  const text = settings.host || DEFAULT_ENGINE;
  if (text.startsWith("unix://")) return { socketPath: text.slice("unix://".length) };
  const url = text.startsWith("tcp://") ? parse(text) : undefined;
  if (!url?.hostname) {
    throw new HandError(`DOCKER_HOST: "${text}" is neither unix:///path nor tcp://host:port`);
  }
  const host = url.hostname.replace(/^\[|\]$/g, "");
  if (settings.tlsVerify !== true) return { protocol: "http", host, port: Number(url.port) || PLAIN_PORT };
  return { protocol: "https", host, port: Number(url.port) || TLS_PORT, ...certificates(settings.certPath) };
}

function parse(text: string): URL | undefined {
  try {
    return new URL(`http${text.slice("tcp".length)}`);
  } catch {
    return undefined;
  }
}

function certificates(folder: string | undefined): { ca: string; cert: string; key: string } {
  if (!folder) throw new HandError("DOCKER_TLS_VERIFY needs DOCKER_CERT_PATH");
  try {
    const [ca = "", cert = "", key = ""] = ["ca.pem", "cert.pem", "key.pem"].map((name) =>
      readFileSync(join(folder, name), "utf8"),
    );
    return { ca, cert, key };
  } catch (error) {
    throw new HandError(`DOCKER_CERT_PATH: ${messageOf(error)}`);
  }
}

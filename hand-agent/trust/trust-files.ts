/**
 * What programs of a hand trust, where its session has variables: the proxy shows certificates of an authority that nobody
 * else knows. The files lie in a mount that the agent keeps, so that they outlive containers, and variables that programs
 * look at lead there. Certificates alone: nothing of it is secret.
 */
import { rootCertificates } from "node:tls";
import { messageOf } from "../../kit/errors.ts";
import { type Hand, HandError, type HandPipe } from "../drivers/driver.ts";
import { RELAY_PORT } from "../relay/relay.ts";
import { createJavaStore, STORE_PASSWORD } from "./java-store.ts";

export const TRUST_DIR = "/mnt/trust";
/** The authorities alone, for programs that add to what they trust. */
const OWN = `${TRUST_DIR}/authorities.pem`;
/** With the system's roots before them, for programs that take a file in place of these. */
const ALL = `${TRUST_DIR}/roots.pem`;
const JAVA = `${TRUST_DIR}/roots.jks`;

/** Where systems keep their roots in one file: Debian, Fedora, older Red Hat, SUSE, Alpine and BSD. */
const SYSTEM_ROOTS = [
  "/etc/ssl/certs/ca-certificates.crt",
  "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
  "/etc/pki/tls/certs/ca-bundle.crt",
  "/etc/ssl/ca-bundle.pem",
  "/etc/ssl/cert.pem",
];
const MAX_ROOTS_BYTES = 2 * 1024 * 1024;
const CERTIFICATE = /-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----/g;

/** What an environment sets itself may stand over it. */
export function trustVariables(): Record<string, string> {
  const proxy = `-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=${RELAY_PORT} -Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=${RELAY_PORT}`;
  const store = `-Djavax.net.ssl.trustStore=${JAVA} -Djavax.net.ssl.trustStoreType=JKS -Djavax.net.ssl.trustStorePassword=${STORE_PASSWORD}`;
  return {
    // OpenSSL, and with it Python's ssl and Ruby; Go; Rust's native roots.
    SSL_CERT_FILE: ALL,
    NODE_EXTRA_CA_CERTS: OWN,
    DENO_CERT: OWN,
    CURL_CA_BUNDLE: ALL,
    GIT_SSL_CAINFO: ALL,
    REQUESTS_CA_BUNDLE: ALL,
    PIP_CERT: ALL,
    AWS_CA_BUNDLE: ALL,
    CARGO_HTTP_CAINFO: ALL,
    JAVA_TOOL_OPTIONS: `${store} ${proxy}`,
  };
}

/** Writes the files; `authorities` is PEM, empty for a hand without variables. Throws HandError. */
export async function giveTrust(hand: Hand, authorities: string, signal: AbortSignal): Promise<void> {
  const { mounts } = hand;
  const own = authorities.match(CERTIFICATE) ?? [];
  // A hand that was given no variables has no such mount, whatever else it has.
  if (own.length === 0 || mounts === undefined || !hand.roots.some((root) => root.startsWith(TRUST_DIR)))
    return;
  try {
    const system = (await readSystemRoots(hand, signal)).match(CERTIFICATE) ?? rootCertificates;
    const all = [...system, ...own];
    const put = (path: string, bytes: Uint8Array) =>
      mounts.files.writeFile(path, bytes, { mode: 0o644, signal });
    await put(OWN, Buffer.from(`${own.join("\n")}\n`));
    await put(ALL, Buffer.from(`${all.join("\n")}\n`));
    await put(JAVA, createJavaStore(all));
  } catch (error) {
    signal.throwIfAborted();
    throw new HandError(`what its programs are to trust could not be written: ${messageOf(error)}`, {
      cause: error,
    });
  }
}

/** Those that the hand's own programs would look at: of its image, or of the machine. Empty where it has none. */
async function readSystemRoots(hand: Hand, signal: AbortSignal): Promise<string> {
  const look = `for file in ${SYSTEM_ROOTS.join(" ")}; do if [ -s "$file" ]; then exec cat "$file"; fi; done`;
  const child = await hand.exec({ argv: ["/bin/sh", "-c", look], callId: "trust" }, signal);
  const [roots] = await Promise.all([textOf(child.stdout), textOf(child.stderr), child.exit]);
  return roots;
}

async function textOf(pipe: HandPipe): Promise<string> {
  const parts: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of pipe.chunks) {
    bytes += chunk.length;
    if (bytes <= MAX_ROOTS_BYTES) parts.push(chunk);
  }
  return Buffer.concat(parts).toString("latin1");
}

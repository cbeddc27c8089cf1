/** What the transport says when no connection comes about, in words for the people who run the programs. */

/** Why no connection came about, for programs: `cause` in the metadata of the error. */
export type TransportCause =
  | "dns"
  | "protocol"
  | "refused"
  | "reset"
  | "timeout"
  | "tls"
  | "unknown"
  | "unreachable";

export interface TransportFailure {
  message: string;
  /** Not there when the message is not about a connection that failed to come about. */
  cause?: TransportCause;
}

/** How a message about a certificate begins. */
export const UNTRUSTED = "the server's certificate is not trusted";
const NO_SUCH_NAME = "no such host name";

/** As Node and OpenSSL say that nobody vouches for a certificate. */
const NO_AUTHORITY =
  /self[- ]signed certificate|unable to verify the first certificate|unable to get (?:local )?issuer certificate/i;
const BAD_CERTIFICATE =
  /certificate has expired|certificate is not yet valid|does not match certificate|not in the cert's list/i;
const NO_HTTP2 = /no application protocol/i;
/** The answer was no TLS at all. */
const NO_TLS =
  /wrong version number|packet length too long|record layer failure|before secure TLS connection/i;

/** The codes of failed system calls that people meet. */
const CODES: Record<string, [words: string, cause: TransportCause]> = {
  EACCES: ["not permitted here (a firewall?)", "unreachable"],
  EADDRNOTAVAIL: ["that address cannot be reached from here", "unreachable"],
  EAI_AGAIN: ["the name cannot be looked up now", "dns"],
  ECONNREFUSED: ["connection refused", "refused"],
  ECONNRESET: ["the connection was reset", "reset"],
  EHOSTDOWN: ["that host is down", "unreachable"],
  EHOSTUNREACH: ["no route to that host", "unreachable"],
  ENETUNREACH: ["no route to that network", "unreachable"],
  ENOTFOUND: [NO_SUCH_NAME, "dns"],
  EPERM: ["not permitted here (a firewall?)", "unreachable"],
  EPIPE: ["the connection was closed", "reset"],
  ETIMEDOUT: ["no answer", "timeout"],
};

/** The message itself, without a cause, when it is not about a connection that failed. */
export function transportFailure(details: string): TransportFailure {
  const unresolved = /^Name resolution failed for target (?:dns:)?(\S+)/.exec(details);
  if (unresolved !== null) return noConnection(unresolved[1], NO_SUCH_NAME, "dns");
  const found =
    /^No connection established\. Last error: (?:Error: )?(.*?)\.?\s*(?:Resolution note:\s*(.*))?$/s.exec(
      details,
    );
  if (found === null) return { message: details };
  return connectionFailure(found[1] ?? "", found[2]);
}

/** The same for what Node itself says of a connection. */
export function connectionMessage(error: string): string {
  return connectionFailure(error).message;
}

function connectionFailure(last: string, note = ""): TransportFailure {
  return tlsFailure(last) ?? socketFailure(last) ?? strangeFailure(last, note);
}

function tlsFailure(last: string): TransportFailure | undefined {
  // Newer versions of Node add advice about themselves.
  const short = last.replace(/; if the root CA is installed locally.*$/s, "");
  if (NO_AUTHORITY.test(last)) {
    const what = "give its authority with TENDON_CA_FILE or --ca-file";
    return { message: `${UNTRUSTED}: ${short}; ${what}`, cause: "tls" };
  }
  if (BAD_CERTIFICATE.test(last)) return { message: `${UNTRUSTED}: ${short}`, cause: "tls" };
  if (NO_TLS.test(last)) {
    return noConnection(undefined, "the server does not speak TLS there; is its URL http://?", "tls");
  }
  if (NO_HTTP2.test(last)) {
    const words = "the server does not speak HTTP/2 there; is it a Tendon server?";
    return noConnection(undefined, words, "protocol");
  }
  const openssl = /error:[0-9A-F]+:SSL routines:[^:]*:([^:]+)/i.exec(last)?.[1];
  return openssl === undefined ? undefined : noConnection(undefined, `TLS failed, ${openssl}`, "tls");
}

/** Node's words are "connect ECONNREFUSED 127.0.0.1:7400", where there is an address. */
function socketFailure(last: string): TransportFailure | undefined {
  const [, code = "", address] = /^\w+ (E[A-Z_]+)(?: (\S+))?/.exec(last) ?? [];
  const known = CODES[code];
  return known === undefined ? undefined : noConnection(address, ...known);
}

function strangeFailure(last: string, note: string): TransportFailure {
  if (last.startsWith("Failed to connect")) {
    return noConnection(undefined, "the connection was closed at once", "reset");
  }
  if (last.startsWith("Protocol error")) {
    return noConnection(undefined, "the server does not speak gRPC there", "protocol");
  }
  if (last !== "undefined" && last !== "null" && last !== "") return noConnection(undefined, last, "unknown");
  // A proxy that refuses leaves no error behind.
  const words = note === "" ? "no cause is known; if HTTPS_PROXY is set, the proxy may have refused" : note;
  return noConnection(undefined, words, "unknown");
}

function noConnection(address: string | undefined, words: string, cause: TransportCause): TransportFailure {
  const where = address === undefined ? "" : ` to ${withBrackets(address)}`;
  return { message: `cannot connect${where}: ${words}`, cause };
}

/** Node writes the address "::1" with port 7400 as "::1:7400". */
function withBrackets(address: string): string {
  const [, host, port] = /^([^[\]]*:[^[\]]*):(\d+)$/.exec(address) ?? [];
  return host === undefined ? address : `[${host}]:${port}`;
}

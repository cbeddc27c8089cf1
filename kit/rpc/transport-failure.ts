/** What the transport says when no connection comes about, in words for the people who run the programs. */

/** How a message about a certificate begins. */
export const UNTRUSTED = "the server's certificate is not accepted";

const CA_HINT =
  "if an authority of your own signs it, name that authority's certificates with TENDON_CA_FILE or --ca-file";

/** As Node and OpenSSL say that nobody vouches for a certificate. */
const NO_AUTHORITY =
  /self[- ]signed certificate|unable to verify the first certificate|unable to get (?:local )?issuer certificate/i;
const BAD_CERTIFICATE =
  /certificate has expired|certificate is not yet valid|does not match certificate|not in the cert's list/i;
const NO_HTTP2 = /no application protocol/i;
/** The answer was no TLS at all. */
const NO_TLS =
  /wrong version number|packet length too long|record layer failure|before secure TLS connection/i;

/** The message itself when it is not about a connection that failed. */
export function transportMessage(details: string): string {
  const found =
    /^No connection established\. Last error: (?:Error: )?(.*?)\.?\s*(?:Resolution note:\s*(.*))?$/s.exec(
      details,
    );
  if (found === null) return details;
  return connectionMessage([found[1], found[2]].filter(Boolean).join("; "));
}

/** The same for what Node itself says of a connection. */
export function connectionMessage(cause: string): string {
  // Newer versions of Node add advice about themselves.
  const short = cause.replace(/; if the root CA is installed locally.*$/s, "");
  if (NO_AUTHORITY.test(cause)) return `${UNTRUSTED}: ${short}; ${CA_HINT}`;
  if (BAD_CERTIFICATE.test(cause)) return `${UNTRUSTED}: ${short}`;
  if (NO_TLS.test(cause)) return "no connection: the server does not speak TLS there; is its URL http://?";
  if (NO_HTTP2.test(cause))
    return "no connection: the server does not speak HTTP/2 there; is it a Tendon server?";
  const openssl = /error:[0-9A-F]+:SSL routines:[^:]*:([^:]+)/i.exec(cause)?.[1];
  return `no connection: ${openssl === undefined ? short : `TLS failed, ${openssl}`}`;
}

import { expect, test } from "vitest";
import { transportFailure } from "./transport-failure.ts";

const failed = (error: string, note = "") =>
  transportFailure(`No connection established. Last error: ${error}. Resolution note: ${note}`);

test.each([
  ["Error: connect ECONNREFUSED 127.0.0.1:7400", "127.0.0.1:7400: connection refused", "refused"],
  ["Error: connect ECONNREFUSED ::1:7400", "[::1]:7400: connection refused", "refused"],
  ["Error: connect ETIMEDOUT 10.0.0.1:443", "10.0.0.1:443: no answer", "timeout"],
  ["Error: connect EHOSTUNREACH fd00::1:7400", "[fd00::1]:7400: no route to that host", "unreachable"],
  ["Error: connect ENETUNREACH 10.0.0.1:7400 - Local (0.0.0.0:0)", "no route to that network", "unreachable"],
  ["Error: getaddrinfo ENOTFOUND db.internal", "db.internal: no such host name", "dns"],
  ["Error: read ECONNRESET", "cannot connect: the connection was reset", "reset"],
  ["Failed to connect (2026-01-01T00:00:00.000Z)", "the connection was closed at once", "reset"],
  ["Protocol error (2026-01-01T00:00:00.000Z)", "does not speak gRPC there", "protocol"],
  ["undefined", "HTTPS_PROXY", "unknown"],
  ["Error: connect EWHATEVER 127.0.0.1:1", "cannot connect: connect EWHATEVER 127.0.0.1:1", "unknown"],
])("a connection that does not come about is told in words: %s", (error, words, cause) => {
  const failure = failed(error);
  expect(failure.message).toMatch(/^cannot connect/);
  expect(failure.message).toContain(words);
  expect(failure.cause).toBe(cause);
  expect(failure.message).not.toMatch(/Resolution note|Last error|undefined|ECONN|2026/);
});

test("a name that is not found is told with the name", () => {
  const failure = transportFailure("Name resolution failed for target dns:nohost.invalid:7400");
  expect(failure).toEqual({
    message: "cannot connect to nohost.invalid:7400: no such host name",
    cause: "dns",
  });
});

test.each([
  "Error: self-signed certificate in certificate chain",
  "Error: unable to verify the first certificate; if the root CA is installed locally, try running Node.js with --use-system-ca",
  "Error: unable to get local issuer certificate",
])("a certificate that nobody vouches for leads to TENDON_CA_FILE: %s", (error) => {
  const failure = failed(error);
  expect(failure.message).toMatch(
    /^the server's certificate is not trusted: .*; give its authority with TENDON_CA_FILE/,
  );
  expect(failure.message).not.toContain("Node.js");
  expect(failure.cause).toBe("tls");
});

test("other certificates that are refused are no matter of the authority", () => {
  expect(failed("Error: certificate has expired")).toEqual({
    message: "the server's certificate is not trusted: certificate has expired",
    cause: "tls",
  });
});

test.each([
  "Error: write EPROTO 80BB:error:0A00010B:SSL routines:ssl3_get_record:wrong version number:x.c:354:\n",
  "Error: Client network socket disconnected before secure TLS connection was established",
])("a server without TLS is told in words: %s", (error) => {
  expect(failed(error)).toEqual({
    message: "cannot connect: the server does not speak TLS there; is its URL http://?",
    cause: "tls",
  });
});

test("what OpenSSL says is told in words", () => {
  const openssl = "write EPROTO 80BB:error:0A000460:SSL routines:ssl3_read_bytes";
  expect(failed(`Error: ${openssl}:tlsv1 alert no application protocol:x.c:1586:`)).toEqual({
    message: "cannot connect: the server does not speak HTTP/2 there; is it a Tendon server?",
    cause: "protocol",
  });
  expect(failed(`Error: ${openssl}:sslv3 alert handshake failure:x.c:1586:`)).toEqual({
    message: "cannot connect: TLS failed, sslv3 alert handshake failure",
    cause: "tls",
  });
});

test("any other message stays as it is", () => {
  expect(transportFailure("Connection dropped")).toEqual({ message: "Connection dropped" });
});

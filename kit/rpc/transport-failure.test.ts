import { expect, test } from "vitest";
import { transportMessage } from "./transport-failure.ts";

const failed = (error: string, note = "") =>
  `No connection established. Last error: ${error}. Resolution note: ${note}`;

test("a connection that is refused is told without the transport's words around it", () => {
  expect(transportMessage(failed("Error: connect ECONNREFUSED 127.0.0.1:1"))).toBe(
    "no connection: connect ECONNREFUSED 127.0.0.1:1",
  );
  expect(transportMessage(failed("null", "Name resolution failed"))).toBe(
    "no connection: null; Name resolution failed",
  );
});

test.each([
  "Error: self-signed certificate in certificate chain",
  "Error: unable to verify the first certificate; if the root CA is installed locally, try running Node.js with --use-system-ca",
  "Error: unable to get local issuer certificate",
])("a certificate that nobody vouches for leads to TENDON_CA_FILE: %s", (error) => {
  const message = transportMessage(failed(error));
  expect(message).toMatch(/^the server's certificate is not accepted: .*TENDON_CA_FILE or --ca-file$/);
  expect(message).not.toContain("Node.js");
});

test("other certificates that are refused are no matter of the authority", () => {
  const message = transportMessage(failed("Error: certificate has expired"));
  expect(message).toBe("the server's certificate is not accepted: certificate has expired");
});

test("a server without TLS is told in words", () => {
  const raw =
    "Error: write EPROTO 80BB:error:0A00010B:SSL routines:ssl3_get_record:wrong version number:x.c:354:";
  expect(transportMessage(failed(raw))).not.toContain("SSL routines");
});

test("any other message stays as it is", () => {
  expect(transportMessage("Connection dropped")).toBe("Connection dropped");
});

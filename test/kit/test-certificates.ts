/** Certificates for 127.0.0.1 and localhost, made with openssl in a directory of their own. */
import { execFile } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";

const run = promisify(execFile);

export interface TestCertificates {
  directory: string;
  caFile: string;
  /** A new key and certificate signed by the authority. */
  issue(name: string): Promise<{ certFile: string; keyFile: string }>;
  remove(): Promise<void>;
}

export async function createCertificates(): Promise<TestCertificates> {
  const directory = await mkdtemp(join(tmpdir(), "tendon-certs-"));
  const path = (file: string) => join(directory, file);
  const curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
  const caKey = path("ca.key");
  const caFile = path("ca.crt");
  await run("openssl", [
    ...["req", "-x509", ...curve, "-keyout", caKey, "-out", caFile],
    ...["-subj", "/CN=Test Authority", "-days", "2"],
  ]);
  await writeFile(path("san.ext"), "subjectAltName=DNS:localhost,DNS:server.test,IP:127.0.0.1\n");
  return {
    directory,
    caFile,
    async issue(name) {
      const [keyFile, requestFile, certFile] = [
        path(`${name}.key`),
        path(`${name}.csr`),
        path(`${name}.crt`),
      ];
      await run("openssl", [
        "req",
        ...curve,
        "-keyout",
        keyFile,
        "-out",
        requestFile,
        "-subj",
        `/CN=${name}`,
      ]);
      await run("openssl", [
        ...["x509", "-req", "-in", requestFile, "-CA", caFile, "-CAkey", caKey, "-CAcreateserial"],
        ...["-out", certFile, "-days", "2", "-extfile", path("san.ext")],
      ]);
      return { certFile, keyFile };
    },
    remove: () => rm(directory, { recursive: true, force: true }),
  };
}

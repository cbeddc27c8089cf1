import { copyFile, readFile } from "node:fs/promises";
import https from "node:https";
import { join } from "node:path";
import tls from "node:tls";
import { Channel, credentials } from "@grpc/grpc-js";
import { expect, test } from "vitest";
import { eventually } from "../../test/kit/eventually.ts";
import { EchoService } from "../../test/kit/proto/echo_pb.ts";
import {
  emptyMessage,
  GRPC_JS,
  grpcCall,
  jsonCall,
  type ListenCertificates,
  request,
  useListenRig,
} from "../../test/kit/use-listen-rig.ts";
import { createClient } from "../rpc/client.ts";

let certificates: ListenCertificates["certificates"];
let identity: ListenCertificates["identity"];
let ca: ListenCertificates["ca"];

const { cleanups, start, open, connectHttp2 } = useListenRig((made) => {
  ({ certificates, identity, ca } = made);
});

test("with TLS a client that offers only h2 gets grpc-js", async () => {
  const { listener, recorder } = await start({ tls: identity });
  const { echo } = open(listener.port, true);
  expect((await echo.unary({ text: "secure" })).text).toBe("secure");
  expect(recorder.peers[0]).toMatch(/^127\.0\.0\.1:\d+$/);
  const session = connectHttp2(`https://127.0.0.1:${listener.port}`, ["h2"]);
  const grpc = await request(session, grpcCall, emptyMessage);
  expect(grpc.headers["grpc-accept-encoding"]).toBe(GRPC_JS);
});

test("with TLS a client that offers h2 and http/1.1 gets HTTP/2 that answers everything", async () => {
  const { listener } = await start({ tls: identity });
  const session = connectHttp2(`https://127.0.0.1:${listener.port}`, ["h2", "http/1.1"]);
  expect((await request(session, { ":path": "/console" })).body.toString()).toContain('"version":"2.0"');
  expect((await request(session, jsonCall, '{"text":"tls"}')).body.toString()).toBe('{"text":"tls"}');
  const grpc = await request(session, grpcCall, emptyMessage);
  expect(grpc.trailers["grpc-status"]).toBe("0");
  expect(grpc.headers["grpc-accept-encoding"]).not.toBe(GRPC_JS);
});

test("with TLS a client that offers http/1.1 or nothing gets HTTP/1.1", async () => {
  const { listener } = await start({ tls: identity });
  for (const ALPNProtocols of [["http/1.1"], undefined]) {
    const body = await new Promise<string>((resolve, reject) => {
      const offered = ALPNProtocols === undefined ? {} : { ALPNProtocols };
      const options = {
        host: "127.0.0.1",
        port: listener.port,
        path: "/plain",
        ca,
        agent: false,
        ...offered,
      };
      const call = https.get(options as https.RequestOptions, (response) => {
        response.setEncoding("utf8").on("data", resolve);
      });
      call.on("error", reject);
    });
    expect(body).toContain('"version":"1.1"');
  }
});

test("a client certificate is demanded when an authority for it is set", async () => {
  const { listener } = await start({ tls: { ...identity, clientCaFile: certificates.caFile } });
  await expect(open(listener.port, true).echo.unary({})).rejects.toMatchObject({ reason: "UNAVAILABLE" });
  const [key, cert] = await Promise.all([readFile(identity.keyFile), readFile(identity.certFile)]);
  const channel = new Channel(`localhost:${listener.port}`, credentials.createSsl(ca, key, cert), {});
  cleanups.push(() => channel.close());
  expect((await createClient(EchoService, channel).unary({ text: "known" })).text).toBe("known");
});

test("TLS files that change are read again, and files that do not fit together change nothing", async () => {
  const next = await certificates.issue("next.test");
  const live = {
    certFile: join(certificates.directory, "live.crt"),
    keyFile: join(certificates.directory, "live.key"),
  };
  await copyFile(identity.certFile, live.certFile);
  await copyFile(identity.keyFile, live.keyFile);
  const { listener } = await start({ tls: live, tlsPollMs: 20 });
  expect(await servedName(listener.port)).toBe("server.test");
  await copyFile(next.certFile, live.certFile);
  expect(await servedName(listener.port)).toBe("server.test");
  await copyFile(next.keyFile, live.keyFile);
  await eventually(async () => (await servedName(listener.port)) === "next.test");
});

function servedName(port: number): Promise<string | undefined> {
  return new Promise((resolve, reject) => {
    const socket = tls.connect({ port, host: "127.0.0.1", ca, ALPNProtocols: ["h2"] }, () => {
      resolve(String(socket.getPeerCertificate().subject.CN));
      socket.destroy();
    });
    socket.on("error", reject);
  });
}

test("missing or broken TLS files are named at the start", async () => {
  const certFile = join(certificates.directory, "absent.crt");
  await expect(start({ tls: { ...identity, certFile } })).rejects.toThrow("absent.crt");
  await expect(start({ tls: { ...identity, keyFile: certificates.caFile } })).rejects.toThrow("cannot use");
});

/** The LFS side of a git host: its batch and lock API at repositories, and a store of objects at another port. */
import { createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import type { IncomingMessage, ServerResponse } from "node:http";
import { createServer, type ServerOptions } from "node:https";
import type { AddressInfo } from "node:net";

const TYPE = "application/vnd.git-lfs+json";

export interface LfsHost {
  /** Of transfers alone; in no answer but those of the batch API. */
  readonly token: string;
  readonly objects: Map<string, Buffer>;
  /** Transfers as they came, newest last. */
  readonly seen: { method: string; authorization: string | undefined }[];
  /** True when the request was one of LFS, which is answered then. Who asks was checked. */
  serve(request: IncomingMessage, response: ServerResponse): boolean;
  stop(): Promise<void>;
}

export async function startLfsHost(tls: ServerOptions): Promise<LfsHost> {
  const objects: LfsHost["objects"] = new Map();
  const seen: LfsHost["seen"] = [];
  const token = `lfs-${randomBytes(12).toString("hex")}`;
  const store = createServer(tls, async (request, response) => {
    const { method = "", url = "", headers } = request;
    seen.push({ method, authorization: headers.authorization });
    const oid = url.slice(1);
    const body = await bytesOf(request);
    if (headers.authorization !== `RemoteAuth ${token}`) return void response.writeHead(403).end();
    if (method === "PUT") {
      const isRight = createHash("sha256").update(body).digest("hex") === oid;
      if (isRight) objects.set(oid, body);
      return void response.writeHead(isRight ? 200 : 400).end();
    }
    const object = objects.get(oid);
    if (object === undefined) return void response.writeHead(404).end();
    response.writeHead(200, { "content-length": object.length, "content-type": "application/octet-stream" });
    response.end(object);
  });
  store.listen(0, "127.0.0.1");
  await once(store, "listening");
  const { port } = store.address() as AddressInfo;
  const actionsOf = (operation: string, oid: string) => {
    const name = operation === "upload" ? "upload" : "download";
    if ((name === "upload") === objects.has(oid)) return {};
    const header = { Authorization: `RemoteAuth ${token}` };
    return { actions: { [name]: { href: `https://127.0.0.1:${port}/${oid}`, header, expires_in: 600 } } };
  };
  return {
    token,
    objects,
    seen,
    serve(request, response) {
      const [, rest] = /\/info\/lfs(\/.*)$/.exec(request.url ?? "") ?? [];
      if (rest === undefined) return false;
      void bytesOf(request).then((body) => {
        const asked = body.length === 0 ? {} : JSON.parse(body.toString());
        const say = (answer: object) => {
          response.writeHead(200, { "content-type": TYPE }).end(JSON.stringify(answer));
        };
        if (rest !== "/objects/batch") return say({ ours: [], theirs: [], locks: [] });
        const found = (asked.objects as { oid: string; size: number }[]).map((object) => ({
          ...object,
          ...actionsOf(asked.operation, object.oid),
        }));
        say({ transfer: "basic", objects: found });
      });
      return true;
    },
    async stop() {
      store.closeAllConnections();
      await new Promise((resolve) => store.close(resolve));
    },
  };
}

async function bytesOf(request: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks);
}

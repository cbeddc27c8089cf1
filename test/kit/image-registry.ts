/** The far side of a pull: a registry of one image, made from one that the engine has. Engines speak plain HTTP to loopback. */

import { execFile } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { gzipSync } from "node:zlib";
import type { TestEngine } from "./docker.ts";

const MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json";

export class ImageRegistry {
  /** Of the image, for pulls. */
  readonly image: string;
  /** Until then only half of a layer is sent. */
  private release: () => void = () => {};
  private released = Promise.resolve();
  private readonly server: Server;
  private readonly blobs: ReadonlyMap<string, Buffer>;
  private readonly manifest: Buffer;

  private constructor(server: Server, blobs: ReadonlyMap<string, Buffer>, manifest: Buffer) {
    this.server = server;
    this.blobs = blobs;
    this.manifest = manifest;
    this.image = `127.0.0.1:${(server.address() as AddressInfo).port}/tendon-test/pulled:1`;
    server.on("request", (request, response) => void this.answer(request, response));
  }

  static async of(engine: TestEngine, image: string): Promise<ImageRegistry> {
    const { config, layers } = await filesOf(engine, image);
    const packed = layers.map((layer) => gzipSync(layer, { level: 0 }));
    const blobs = new Map([config, ...packed].map((blob) => [digestOf(blob), blob]));
    const entry = (mediaType: string, blob: Buffer) => ({
      mediaType,
      size: blob.length,
      digest: digestOf(blob),
    });
    const manifest = {
      schemaVersion: 2,
      mediaType: MANIFEST_TYPE,
      config: entry("application/vnd.docker.container.image.v1+json", config),
      layers: packed.map((blob) => entry("application/vnd.docker.image.rootfs.diff.tar.gzip", blob)),
    };
    const server = createServer().listen(0, "127.0.0.1");
    await once(server, "listening");
    return new ImageRegistry(server, blobs, Buffer.from(JSON.stringify(manifest)));
  }

  /** Sends half of a layer from now on, and the rest when the returned function is called. */
  hold(): () => void {
    this.released = new Promise((resolve) => {
      this.release = resolve;
    });
    return () => this.release();
  }

  async close(): Promise<void> {
    this.release();
    this.server.closeAllConnections();
    this.server.close();
    await once(this.server, "close");
  }

  private async answer({ url = "", method }: IncomingMessage, response: ServerResponse): Promise<void> {
    if (url === "/v2/") return void response.end("{}");
    if (/^\/v2\/tendon-test\/pulled\/manifests\//.test(url))
      return this.send(response, this.manifest, MANIFEST_TYPE, method);
    const blob = this.blobs.get(/\/blobs\/(sha256:[0-9a-f]+)$/.exec(url)?.[1] ?? "");
    if (blob !== undefined) return this.send(response, blob, "application/octet-stream", method);
    response.writeHead(404, { "content-type": "application/json" });
    response.end(JSON.stringify({ errors: [{ code: "MANIFEST_UNKNOWN", message: "manifest unknown" }] }));
  }

  private async send(
    response: ServerResponse,
    body: Buffer,
    type: string,
    method: string | undefined,
  ): Promise<void> {
    response.writeHead(200, {
      "content-type": type,
      "content-length": body.length,
      "docker-content-digest": digestOf(body),
    });
    if (method === "HEAD") return void response.end();
    const half = Math.floor(body.length / 2);
    if (body.length > 64 * 1024) {
      response.write(body.subarray(0, half));
      await this.released;
    }
    response.end(body.length > 64 * 1024 ? body.subarray(half) : body);
  }
}

/** What `docker save` packs: the image's configuration and its layers. */
async function filesOf(engine: TestEngine, image: string): Promise<{ config: Buffer; layers: Buffer[] }> {
  const folder = await mkdtemp(join(tmpdir(), "tendon-registry-"));
  try {
    const archive = join(folder, "image.tar");
    await engine.docker("save", "--output", archive, image);
    await promisify(execFile)("tar", ["-C", folder, "-xf", archive]);
    const [{ Config, Layers }] = JSON.parse(await readFile(join(folder, "manifest.json"), "utf8"));
    // A file that no other image has: engines do not fetch what they know.
    await writeFile(join(folder, "only-here"), randomBytes(2 * 1024 * 1024));
    const last = join(folder, (Layers as string[]).at(-1) ?? "");
    await promisify(execFile)("tar", ["-C", folder, "-rf", last, "only-here"]);
    const layers = await Promise.all((Layers as string[]).map((path) => readFile(join(folder, path))));
    const config = JSON.parse(await readFile(join(folder, Config), "utf8"));
    config.rootfs.diff_ids = layers.map(digestOf);
    return { config: Buffer.from(JSON.stringify(config)), layers };
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

function digestOf(blob: Buffer): string {
  return `sha256:${createHash("sha256").update(blob).digest("hex")}`;
}

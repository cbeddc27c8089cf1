/**
 * Images with packages: made once from an image and the commands that install them, and kept for later hands. Who waits
 * for one may leave; the work goes on, and the next hand finds it done.
 */
import { createHash } from "node:crypto";
import type { Container } from "dockerode";
import { abortable } from "../../../kit/abortable.ts";
import { type Clock, within } from "../../../kit/clock.ts";
import { messageOf } from "../../../kit/errors.ts";
import type { Logger } from "../../../kit/log.ts";
import { HandError } from "../driver.ts";
import type { Engine } from "./engine.ts";

const REPOSITORY = "tendon-packages";
const INSTALL_WITHIN_MS = 15 * 60_000;
const MAX_IMAGES = 32;
const TOLD_LINES = 20;
const MAX_TOLD_CHARS = 2_000;
const MAX_PROCESSES = 4_096;

export interface PackageImagesOptions {
  readonly engine: Engine;
  readonly agentId: () => Promise<string>;
  readonly clock: Clock;
  readonly log: Logger;
}

export class PackageImages {
  private readonly options: PackageImagesOptions;
  private readonly making = new Map<string, Promise<string>>();
  private readonly containers = new Set<string>();

  constructor(options: PackageImagesOptions) {
    this.options = options;
  }

  /** Name of the image that has them. `image` is there. Rejects with HandError. */
  async prepare(
    image: string,
    commands: string,
    { signal, onProgress }: { signal: AbortSignal | undefined; onProgress: (detail: string) => void },
  ): Promise<string> {
    const { engine } = this.options;
    const { Id: imageId } = await engine.ask("look for the image", (docker) =>
      docker.getImage(image).inspect(),
    );
    const key = createHash("sha256").update(`${imageId}\n${commands}`).digest("hex").slice(0, 32);
    const name = `${REPOSITORY}:${key}`;
    if ((await engine.find("look for the image", (docker) => docker.getImage(name).inspect())) !== undefined)
      return name;
    onProgress("installing packages");
    const running = this.making.get(key) ?? this.make(imageId, commands, key);
    return signal === undefined ? running : abortable(running, signal);
  }

  /** What is being installed is given up. */
  async close(): Promise<void> {
    await Promise.all([...this.containers].map((id) => this.remove(id)));
  }

  private make(imageId: string, commands: string, key: string): Promise<string> {
    const made = this.install(imageId, commands, key).finally(() => this.making.delete(key));
    made.catch(() => {}); // those who asked may have left
    this.making.set(key, made);
    return made;
  }

  private async install(imageId: string, commands: string, key: string): Promise<string> {
    const { engine, agentId, clock } = this.options;
    const labels = { "tendon.agent": await agentId(), "tendon.packages": key };
    const container = await engine.ask("make a container for packages", (docker) =>
      docker.createContainer({
        Image: imageId,
        Entrypoint: ["/bin/sh", "-c"],
        Cmd: [commands],
        User: "0",
        // One stream of plain text.
        Tty: true,
        Labels: labels,
        HostConfig: { PidsLimit: MAX_PROCESSES, SecurityOpt: ["no-new-privileges"] },
      }),
    );
    this.containers.add(container.id);
    try {
      await engine.ask("install packages", () => container.start());
      const ended = engine.ask("install packages", () => container.wait()) as Promise<{ StatusCode: number }>;
      const late = () =>
        new HandError(`packages were not installed within ${INSTALL_WITHIN_MS / 60_000} minutes`);
      const { StatusCode: code } = await within(clock, INSTALL_WITHIN_MS, ended, late);
      if (code !== 0)
        throw new HandError(
          `packages could not be installed (exit ${code}): ${await this.lastLines(container)}`,
        );
      await engine.ask("keep the image with packages", () =>
        container.commit({ repo: REPOSITORY, tag: key, changes: ["ENTRYPOINT []", 'CMD ["/bin/sh"]'] }),
      );
    } finally {
      await this.remove(container.id);
    }
    await this.forgetOld().catch((error) =>
      this.options.log.warn({ error: messageOf(error) }, "old images with packages were not removed"),
    );
    return `${REPOSITORY}:${key}`;
  }

  private async lastLines(container: Container): Promise<string> {
    const text = await this.options.engine.ask("read what was said", () =>
      container.logs({ stdout: true, stderr: true, tail: TOLD_LINES, follow: false }),
    );
    return text.toString("utf8").replaceAll("\r", "").trim().slice(-MAX_TOLD_CHARS);
  }

  private async remove(id: string): Promise<void> {
    this.containers.delete(id);
    await this.options.engine
      .find("remove the container", (docker) => docker.getContainer(id).remove({ force: true, v: true }))
      .catch((error) =>
        this.options.log.warn({ error: messageOf(error) }, "a container for packages is left"),
      );
  }

  /** The oldest beyond a number; those that hands still have are left. */
  private async forgetOld(): Promise<void> {
    const { engine, agentId } = this.options;
    const label = [`tendon.agent=${await agentId()}`, "tendon.packages"];
    const images = await engine.ask("list images", (docker) => docker.listImages({ filters: { label } }));
    const old = images.toSorted((one, other) => other.Created - one.Created).slice(MAX_IMAGES);
    for (const { Id: id } of old)
      await engine.ask("remove an image", (docker) => docker.getImage(id).remove()).catch(() => {});
  }
}

/** Images of a registry that asks for credentials: a real registry, a real engine, and an operator's file. */
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { messageOf } from "../../kit/errors.ts";
import { ensureBusyboxImage } from "../kit/docker-images.ts";
import { DockerRegistry, REGISTRY_PASSWORD, REGISTRY_USER, whyNoRegistry } from "../kit/docker-registry.ts";
import { DockerRig } from "../kit/docker-rig.ts";

const skip = whyNoRegistry();

describe.skipIf(skip !== undefined)(
  `images of a registry with users${skip ? ` (skipped: ${skip})` : ""}`,
  () => {
    let dir: string;
    let rig: DockerRig;
    let registry: DockerRegistry;
    let image: string;
    const file = () => join(dir, "registries.json");

    beforeAll(async () => {
      dir = await mkdtemp(join(tmpdir(), "tendon-registries-"));
      rig = await DockerRig.start({
        registryAuth: { file: file(), helperEnv: { PATH: `${dir}:/usr/bin:/bin` } },
      });
      registry = await DockerRegistry.start();
      image = await registry.push(rig.engine, await ensureBusyboxImage(rig.engine));
    });
    afterAll(async () => {
      await registry?.stop();
      await rig?.stop();
      await rm(dir, { recursive: true, force: true });
    });
    afterEach(() => rig.engine.docker("rmi", "--force", image).catch(() => {}));

    let hands = 0;
    async function pulled(): Promise<string> {
      hands += 1;
      try {
        const hand = await rig.provision(`hand_registry${hands}`, { container: { image, pull: true } });
        await hand.destroy();
        return "made";
      } catch (error) {
        return messageOf(error);
      }
    }

    it("are pulled with what the file says now, and refused with the reason and without a secret (S2)", async () => {
      await writeFile(file(), "{}");
      expect(await pulled()).toMatch(
        /no credentials for 127.0.0.1:\d+; TENDON_HAND_AGENT_REGISTRY_AUTH_FILE/,
      );
      await registry.writeAuth(file(), "wrong-secret-9");
      const wrong = await pulled();
      expect(wrong).toMatch(/the hand agent's credentials for 127.0.0.1:\d+ were sent/);
      expect(wrong).not.toContain("wrong-secret");
      await registry.writeAuth(file(), REGISTRY_PASSWORD);
      expect(await pulled()).toBe("made");
      expect(JSON.stringify(await rig.made())).toBe("[]");
    });

    it("are pulled with what a credential helper gives", async () => {
      const answer = JSON.stringify({ Username: REGISTRY_USER, Secret: REGISTRY_PASSWORD });
      const script = `#!/bin/sh\nread HOST\n[ "$1 $HOST" = "get ${registry.host}" ] && echo '${answer}'\n`;
      await writeFile(join(dir, "docker-credential-of-test"), script, { mode: 0o755 });
      await writeFile(file(), JSON.stringify({ credHelpers: { [registry.host]: "of-test" } }));
      expect(await pulled()).toBe("made");
    });
  },
);

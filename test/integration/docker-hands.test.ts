/** The life of docker hands on a real engine: what is told when containers, volumes or the agent go away under them. */

import { randomBytes } from "node:crypto";
import { setImmediate } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { DockerDriver } from "../../hand-agent/drivers/docker/docker-driver.ts";
import type { Hand } from "../../hand-agent/drivers/driver.ts";
import { systemClock } from "../../kit/clock.ts";
import { createLogger } from "../../kit/log.ts";
import { whyNoDocker } from "../kit/docker.ts";
import { ensureBusyboxImage } from "../kit/docker-images.ts";
import { DockerRig } from "../kit/docker-rig.ts";
import { eventually } from "../kit/eventually.ts";
import { textOf, toolCaller } from "../kit/tool-caller.ts";

const newId = (name: string) => `hand_${name}_${randomBytes(4).toString("hex")}`;

describe.skipIf(whyNoDocker() !== undefined)("docker hands", () => {
  let rig: DockerRig;
  beforeAll(async () => {
    rig = await DockerRig.start();
  });
  afterAll(() => rig?.stop());

  const docker = (...args: string[]) => rig.engine.docker(...args);
  const inspect = async (hand: Hand, format: string) =>
    (await docker("inspect", "--format", format, `tendon-${hand.id}`)).trim();

  it("carry the labels of their installation and agent, and log nothing on the engine's disk", async () => {
    const hand = await rig.provision(newId("labels"));
    expect(await inspect(hand, '{{index .Config.Labels "tendon.installation"}}')).toBe("inst_test");
    expect(await inspect(hand, '{{index .Config.Labels "tendon.agent"}}')).toBe(await rig.agentId());
    expect(await inspect(hand, "{{.HostConfig.LogConfig.Type}}")).toBe("none");
    const volume = await inspect(
      hand,
      '{{range .Mounts}}{{if eq .Destination "/hand"}}{{.Name}}{{end}}{{end}}',
    );
    expect(await docker("volume", "inspect", "--format", '{{index .Labels "tendon.agent"}}', volume)).toBe(
      `${await rig.agentId()}\n`,
    );
    await hand.destroy();
    await expect(docker("volume", "inspect", volume)).rejects.toThrow(/[Nn]o such volume/);
  });

  it("say so when a command spoiled the pipes that output goes through, and have new ones for the next", async () => {
    const hand = await rig.provision(newId("pipes"));
    const { bash } = toolCaller(hand);
    await bash("echo kept >f");
    const dir = "/run/tendon-hand";
    for (const spoil of [
      `rm -f ${dir}/*`,
      `chmod 000 ${dir}`,
      `rm -f ${dir}/*; touch ${dir}/p$((RANDOM % 9))`,
    ]) {
      // What is open already is not lost.
      expect(textOf(await bash(`sleep 1000 & ${spoil}; echo said`))).toMatch(/^said/);
      const next = await bash("echo lost >>f; echo heard");
      expect(next.isError).toBe(true);
      expect(textOf(next)).toMatch(/removed or changed files in \/run\/tendon-hand.*did not run/);
      const after = await bash("cat f");
      expect([after.isError, textOf(after)]).toEqual([
        false,
        expect.stringMatching(/^kept(\n\[the shell had ended|$)/),
      ]);
    }
    await hand.destroy();
  });

  it("tell their programs that a container has ended before whoever ended it goes on", async () => {
    const hand = await rig.provision(newId("pipes"));
    const program = await hand.exec({ argv: ["sleep", "1000"] });
    const order: string[] = [];
    const exit = program.exit.catch((error: Error) => order.push(error.message));
    await toolCaller(hand).bash("rm -f /run/tendon-hand/*; echo said");
    await expect(hand.openPipe(newId("call"))).rejects.toThrow(/removed or changed files/);
    order.push("the next call");
    await exit;
    expect(order).toEqual(["the container has ended: it had spoiled its own pipes", "the next call"]);
    await hand.destroy();
  });

  it("go on in one new container, however many found the pipes spoiled at once", async () => {
    const hand = await rig.provision(newId("pipes"));
    const { bash } = toolCaller(hand);
    await bash("echo kept >f");
    for (let round = 0; round < 3; round += 1) {
      await bash("rm -f /run/tendon-hand/*; echo said");
      const calls = Promise.allSettled(Array.from({ length: 4 }, () => hand.openPipe(newId("call"))));
      // Each of these takes the container that there is, or has one made.
      let isOver = false;
      const looks = async () => {
        while (!isOver) await hand.stat(hand.workdir).catch(() => setImmediate());
      };
      const looking = Promise.all([looks(), looks()]);
      expect((await calls).map(({ status }) => status)).toContain("rejected");
      isOver = true;
      await looking;
      expect(await hand.stat(hand.workdir)).toMatchObject({ type: "directory" });
      expect(textOf(await bash("cat f"))).toMatch(/^kept/);
    }
    await hand.destroy();
  });

  it("say so when their container is killed under a call, and go on with their files in a new one", async () => {
    const hand = await rig.provision(newId("killed"));
    const { bash } = toolCaller(hand);
    await bash("echo kept >f; X=1");
    let said = "";
    const onOutput = (chunk: Uint8Array) => {
      said += Buffer.from(chunk).toString();
    };
    const running = bash("echo begun; sleep 1000", { onOutput });
    // What has not left the container ends with it.
    await eventually(() => said === "begun\n");
    await eventually(async () => (await hand.callProcesses()).some(({ command }) => command === "sleep"));
    await docker("kill", `tendon-${hand.id}`);
    const result = await running;
    expect(result.isError).toBe(true);
    expect(textOf(result)).toMatch(
      /^begun\nbash: bash session terminated\n\[the container has ended: somebody stopped/,
    );
    expect(textOf(await bash('cat f; echo "[$X]"'))).toMatch(/^kept\n\[\]/);
    await docker("rm", "--force", `tendon-${hand.id}`);
    // A call that comes before this was noticed says so and has not run.
    const next = await eventually(async () => {
      const looked = await bash("cat f");
      return looked.isError ? undefined : looked;
    });
    expect(textOf(next)).toMatch(/^kept\b/);
    await hand.destroy();
  });

  it("are lost, and say so, when somebody removes their workspace; never silently empty (H2, R16)", async () => {
    const hand = await rig.provision(newId("lost"));
    const { bash } = toolCaller(hand);
    await bash("echo kept >f");
    const volume = await inspect(hand, "{{range .Mounts}}{{.Name}}{{end}}");
    await docker("rm", "--force", `tendon-${hand.id}`);
    await docker("volume", "rm", volume);
    expect(textOf(await bash("cat f"))).toMatch(/the hand is lost: somebody removed its workspace/);
    expect(await hand.lost).toMatch(/somebody removed its workspace/);
    await hand.park?.();
    expect(await rig.driver.recover(hand.handle)).toBe("gone");
    expect((await rig.driver.discard(hand.id)).left).toEqual([]);
  });

  it("come back after their agent has died: files kept, processes ended, one container each", async () => {
    const hand = await rig.provision(newId("crash"), { env: { KIND: "crashed" } });
    await toolCaller(hand).bash("echo kept >f; echo gone >/tmp/g; sleep 1000 & echo started");
    const next = await rig.another({ sameData: true });
    expect(await next.driver.listHandIds()).toContain(hand.id);
    const again = await next.driver.recover(JSON.parse(JSON.stringify(hand.handle)));
    if (again === "gone") throw new Error("the hand is gone");
    expect(again.resumed).toBe(true);
    expect(textOf(await toolCaller(again).bash("cat f; echo $KIND; ls /tmp/g 2>&1"))).toMatch(
      /^kept\ncrashed\n.*No such file/,
    );
    expect((await again.callProcesses()).map(({ command }) => command)).toEqual(["bash"]);
    const names = await docker("ps", "--all", "--filter", `name=${hand.id}`, "--format", "{{.Names}}");
    expect(names).toBe(`tendon-${hand.id}\n`);
    await again.destroy();
  });

  it("of two agents on one engine: neither finds, tidies or destroys those of the other", async () => {
    const hand = await rig.provision(newId("mine"));
    const other = await rig.another();
    try {
      expect(await other.driver.listHandIds()).toEqual([]);
      expect(await other.driver.recover(hand.handle)).toBe("gone");
      await other.driver.discard(hand.id);
      expect(textOf(await toolCaller(hand).bash("echo here"))).toBe("here");
    } finally {
      await hand.destroy();
      await other.stop();
    }
  });

  it("leave nothing when they are made and destroyed side by side, with deaths in between (R15)", async () => {
    const ids = Array.from({ length: 12 }, () => newId("many"));
    const stop = new AbortController();
    const made = await Promise.allSettled(
      ids.map((handId, i) =>
        rig.driver
          .provision(
            { handId, container: { image: rig.image, pull: false } },
            i % 4 === 3 ? stop.signal : undefined,
          )
          .finally(() => i === 0 && stop.abort(new Error("given up"))),
      ),
    );
    const containers = (await docker("ps", "--all", "--filter", "name=hand_many", "--format", "{{.Names}}"))
      .split("\n")
      .filter((name) => name !== "");
    expect(containers.length).toBe(made.filter(({ status }) => status === "fulfilled").length);
    await Promise.all(ids.map((handId) => rig.driver.discard(handId)));
    expect((await rig.made()).filter((name) => name.includes("hand_many"))).toEqual([]);
    expect(
      await docker("volume", "ls", "--quiet", "--filter", `label=tendon.agent=${await rig.agentId()}`),
    ).toBe("");
  });

  it("give every call all of its output, whatever the calls before have left in the background (X6)", async () => {
    const hand = await rig.provision(newId("output"));
    const { bash } = toolCaller(hand);
    const all = Array.from({ length: 15_000 }, (_, i) => `${i + 1}`).join("\n");
    // What is left ends about when its call does: just before, while it is looked for, just after.
    for (let i = 0; i < 30; i++) {
      expect(textOf(await bash(`sleep 0.0${10 + i} & echo ${i}`))).toBe(`${i}`);
      expect(textOf(await bash("seq 1 15000"))).toBe(all);
    }
    await eventually(async () => (await hand.callProcesses()).length === 1);
    await hand.destroy();
  });

  it("take a working directory of the environment's own, with what the image has there", async () => {
    const hand = await rig.provision(newId("workdir"), { container: { workdir: "/srv/app" } });
    const call = toolCaller(hand);
    expect(textOf(await call.bash("pwd; echo x >f; ls"))).toBe("/srv/app\nf");
    await hand.park?.();
    const again = await rig.driver.recover(hand.handle);
    if (again === "gone") throw new Error("the hand is gone");
    expect(textOf(await toolCaller(again).bash("cat /srv/app/f"))).toBe("x");
    await again.destroy();
    await expect(rig.provision(newId("bad"), { container: { workdir: "/proc/x" } })).rejects.toThrow(
      /below \/proc/,
    );
    await expect(rig.provision(newId("bad"), { container: { workdir: "/a/../b" } })).rejects.toThrow(
      /without \. and \.\./,
    );
  });

  it("own their directories also where the engine's files are out of the agent's reach", async () => {
    const far = await rig.another();
    // As on another machine: the engine's own directory is not where it says.
    Object.assign(Reflect.get(far.driver, "engine") as object, { rootDir: async () => "/nowhere" });
    const hand = await far.provision(newId("far"), { container: { workdir: "/hand/app" } });
    expect(textOf(await toolCaller(hand).bash("touch a /hand/outputs/b && stat -c %a . /hand/outputs"))).toBe(
      "700\n700",
    );
    await expect(far.provision(newId("far"), { container: { workdir: "/srv/app" } })).rejects.toThrow(
      /container.workdir must lie below \/hand here/,
    );
    await hand.destroy();
    await far.stop();
  });

  it("complain about paths in the words of hands that are processes", async () => {
    const hand = await rig.provision(newId("words"));
    await toolCaller(hand).bash("ln -s /etc out; mkfifo pipe; ln -s /dev/null null; mkdir d");
    const at = (path: string) => `${hand.workdir}/${path}`;
    const outside = "the path leads outside the hand's directories";
    for (const path of ["/etc/passwd", at("out/passwd"), at("null"), at("../../../x"), "relative"])
      await expect(hand.stat(path)).rejects.toThrow(outside);
    await expect(hand.writeFile("/tmp/x", Buffer.from("x"))).rejects.toThrow(outside);
    await expect(hand.stat(at("absent"))).rejects.toMatchObject({ code: "not_found" });
    await expect(hand.writeFile(at("d"), Buffer.from("x"))).rejects.toThrow("is a directory");
    await expect(hand.writeFile(at("pipe"), Buffer.from("x"))).rejects.toThrow("not a regular file");
    await hand.destroy();
  });

  it("of images with a shell and nothing else: files work, bash says what is missing", async () => {
    const image = await ensureBusyboxImage(rig.engine);
    const hand = await rig.provision(newId("busybox"), { container: { image } });
    const call = toolCaller(hand);
    expect(textOf(await call("write", { file_path: "a/b.txt", content: "one\ntwo\n" }))).toBe(
      "wrote 8 bytes to a/b.txt",
    );
    expect(textOf(await call("edit", { file_path: "a/b.txt", old_string: "two", new_string: "2" }))).toMatch(
      /^edited/,
    );
    expect(textOf(await call("read", { file_path: "a/b.txt" }))).toBe("one\n2\n");
    expect(textOf(await call("glob", { pattern: "**/*.txt" }))).toBe("/hand/work/a/b.txt");
    expect(textOf(await call("grep", { pattern: "^2$" }))).toBe("/hand/work/a/b.txt:2:2");
    const result = await call.bash("true");
    expect(result.isError).toBe(true);
    expect(textOf(result)).toBe(
      "bash: bash session terminated\n[there is no /bin/bash in this hand; this command did not run]",
    );
    await hand.destroy();
  });

  it("are refused with the engine's own reason: no image, no shell, an unknown runtime, limits below the least", async () => {
    const provision = (spec: Parameters<DockerRig["provision"]>[1]) => rig.provision(newId("refused"), spec);
    await expect(provision({ container: { image: "" } })).rejects.toThrow(/names no image/);
    await expect(provision({ container: { image: "tendon-test/none:1" } })).rejects.toThrow(
      /the engine has no image tendon-test\/none:1; pull it/,
    );
    await expect(provision({ container: { runtime: "no-such" } })).rejects.toThrow(/no-such/);
    await expect(provision({ limits: { memoryBytes: 1 << 20 } })).rejects.toThrow(
      /memory_bytes must be at least/,
    );
    await expect(provision({ limits: { processes: 2 } })).rejects.toThrow(/pids must be at least/);
    expect((await rig.made()).filter((name) => name.includes("refused"))).toEqual([]);
  });

  it("are neither offered nor lost where the engine cannot be reached", async () => {
    const away = new DockerDriver({
      dataDir: rig.dataDir,
      clock: systemClock,
      log: createLogger("test", "silent"),
      tools: [],
      engine: { host: "unix:///nowhere/docker.sock" },
      installationId: () => "inst_test",
    });
    expect(await away.probe()).toMatchObject({
      available: false,
      reason: "the Docker engine at unix:///nowhere/docker.sock cannot be reached (ENOENT)",
    });
    const hand = await rig.provision(newId("away"));
    await hand.park?.();
    await expect(away.recover(hand.handle)).rejects.toThrow(/cannot be reached/);
    expect(await away.listHandIds()).toContain(hand.id);
    const again = await rig.driver.recover(hand.handle);
    if (again === "gone") throw new Error("the hand is gone");
    await again.destroy();
  });
});

/** The docker driver on a real engine, by the suite that all drivers pass. */
import { readdirSync, readFileSync } from "node:fs";
import { whyNoDocker } from "../kit/docker.ts";
import { DockerRig } from "../kit/docker-rig.ts";
import { describeDriver } from "./driver-contract.ts";

describeDriver(
  "docker",
  async () => {
    const rig = await DockerRig.start();
    return { driver: rig.withImage, zombies: zombiesInContainers, dispose: () => rig.stop() };
  },
  whyNoDocker(),
);

/** Of this machine, in any namespace but the test's own. */
function zombiesInContainers(): number {
  return readdirSync("/proc").filter((pid) => {
    try {
      const status = /^\d+$/.test(pid) ? readFileSync(`/proc/${pid}/status`, "latin1") : "";
      return /^State:\s+Z/m.test(status) && (/^NSpid:\s+(.*)$/m.exec(status)?.[1] ?? "").includes("\t");
    } catch {
      return false; // gone meanwhile
    }
  }).length;
}

/** What the server asks for, in the words of drivers; what a driver cannot do is refused before anything is made. */
import { type EnvironmentSpec, NetworkMode } from "../proto/gen/tendon/v1/environment_pb.js";
import type { ProvisionCommand } from "../proto/gen/tendon/v1/hand_agent_service_pb.js";
import {
  type Driver,
  HandError,
  type HandLimits,
  type HandNetwork,
  type HandResource,
  type HandSpec,
} from "./drivers/driver.ts";

/** Throws HandError with a text for people. */
export function handSpecOf(command: ProvisionCommand, driver: Driver): HandSpec {
  const { environment } = command;
  if (environment !== undefined) checkEnvironment(environment, driver);
  const network = networkOf(environment);
  return {
    handId: command.handId,
    env: environment?.variables ?? {},
    limits: limitsOf(environment),
    ...(network === undefined ? {} : { network }),
    resources: command.resources.map(({ kind }): HandResource => {
      if (kind.case !== "inlineFile") {
        throw new HandError(
          `this hand agent cannot give a hand a resource of the kind ${kind.case ?? "(none)"}`,
        );
      }
      const { path, content, executable } = kind.value;
      return { kind: "inline", path, content, mode: executable ? 0o755 : 0o644 };
    }),
  };
}

function checkEnvironment({ image, network }: EnvironmentSpec, driver: Driver): void {
  if (image !== "" && driver.name === "process") {
    throw new HandError(
      `the driver ${driver.name} takes no image; remove "image" from the environment or choose another driver`,
    );
  }
  const mode = network?.mode ?? NetworkMode.UNSPECIFIED;
  const wantsLess = mode === NetworkMode.NONE || mode === NetworkMode.LIMITED;
  if (wantsLess && driver.capabilities.network === "host") {
    throw new HandError(
      `the driver ${driver.name} cannot keep its hands from the network; choose another driver`,
    );
  }
}

function networkOf(environment: EnvironmentSpec | undefined): HandNetwork | undefined {
  const { mode = NetworkMode.UNSPECIFIED, allowedHosts = [] } = environment?.network ?? {};
  switch (mode) {
    case NetworkMode.UNSPECIFIED:
      return undefined;
    case NetworkMode.NONE:
      return { mode: "none" };
    case NetworkMode.LIMITED:
      return { mode: "limited", allowedHosts };
    case NetworkMode.UNRESTRICTED:
      return { mode: "unrestricted" };
    default:
      // A newer server's mode: less than it says may not be given, nor more.
      throw new HandError(`this hand agent does not know the network mode ${mode as number}`);
  }
}

function limitsOf(environment: EnvironmentSpec | undefined): HandLimits {
  const limits = environment?.limits;
  if (limits === undefined) return {};
  if (limits.tmpBytes > 0n)
    throw new HandError("this hand agent cannot bound temporary files (limits.tmp_bytes)");
  return {
    ...(limits.memoryBytes > 0n ? { memoryBytes: Number(limits.memoryBytes) } : {}),
    ...(limits.cpuMillis > 0 ? { cpus: limits.cpuMillis / 1000 } : {}),
    ...(limits.pids > 0 ? { processes: limits.pids } : {}),
  };
}

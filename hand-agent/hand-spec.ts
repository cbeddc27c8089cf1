/** What the server asks for, in the words of drivers; what a driver cannot do is refused before anything is made. */
import { type EnvironmentSpec, NetworkMode } from "../proto/gen/tendon/v1/environment_pb.js";
import type { ProvisionCommand } from "../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { GitRepository, HandResource as HandResourceMessage } from "../proto/gen/tendon/v1/hand_pb.js";
import {
  type ContainerSpec,
  type Driver,
  HandError,
  type HandLimits,
  type HandNetwork,
  type HandResource,
  type HandSpec,
  type MountSpec,
  type WarmSpec,
} from "./drivers/driver.ts";
import { mountConfigOf, mountSpecsOf } from "./mounts/mount-config.ts";
import { PACKAGE_HOSTS, packageCommands } from "./package-commands.ts";
import { withGitVariables } from "./repositories/git-variables.ts";
import { runSetup } from "./setup-commands.ts";
import { TRUST_DIR, trustVariables } from "./trust/trust-files.ts";

const DEFAULT_WARM_AGE_MS = 3_600_000;

/** Throws HandError with a text for people. */
export function handSpecOf(command: ProvisionCommand, driver: Driver): HandSpec {
  const { environment } = command;
  if (environment !== undefined) checkEnvironment(environment, driver);
  const network = withTunnels(networkOf(environment), command, driver);
  const container = driver.capabilities.containers === true ? containerOf(environment) : undefined;
  const variables = Object.fromEntries(
    command.resources.flatMap(({ kind }) =>
      kind.case === "variable" ? [[kind.value.name, kind.value.value]] : [],
    ),
  );
  // What has no files is given none: a session with a memory store may have such a hand beside others.
  const config = driver.capabilities.ownTools === true ? undefined : mountConfigOf(command);
  const kept = config === undefined ? [] : mountSpecsOf(config, driver);
  const secret = placeholdersOf(command, driver, network);
  const mounts = secret === undefined ? kept : [...kept, trustMount(driver)];
  // One that waits in a pool has the environment's variables alone, no mounts, and no way to the proxy.
  const isPlain = Object.keys(variables).length === 0 && mounts.length === 0 && command.tunnels === undefined;
  const warm = isPlain ? warmOf(environment) : undefined;
  // An environment may have trust of its own; a placeholder is what the variable is in this session.
  const env = { ...(secret && trustVariables()), ...environment?.variables, ...variables, ...secret };
  return {
    handId: command.handId,
    env: hasGit(network) ? withGitVariables(env, repositoriesOf(command)) : env,
    limits: limitsOf(environment),
    ...(network === undefined ? {} : { network }),
    ...(container === undefined ? {} : { container }),
    ...(warm === undefined ? {} : { warm }),
    ...(mounts.length === 0 ? {} : { mounts }),
    resources: command.resources.flatMap(inlineOf),
  };
}

/** Variables of the session as the hand's programs see them; undefined for none. Throws HandError where they would stay that. */
function placeholdersOf(
  { tunnels }: ProvisionCommand,
  driver: Driver,
  network: HandNetwork | undefined,
): Record<string, string> | undefined {
  const placeholders = tunnels?.placeholders ?? [];
  // What has no processes of its own has no variables either.
  if (placeholders.length === 0 || driver.capabilities.ownTools === true) return undefined;
  if (network?.mode === "limited" && network.tunnels !== undefined) {
    return Object.fromEntries(placeholders.map(({ name, value }) => [name, value]));
  }
  const names = placeholders.map(({ name }) => name).join(", ");
  throw new HandError(
    `the session's vaults have variables (${names}), whose values are put in on the way through the agent's relay; a hand with the machine's network has no relay: choose an environment whose network is none or limited, or a session without that vault`,
  );
}

function trustMount({ name, capabilities }: Driver): MountSpec {
  if (capabilities.mounts !== true) {
    throw new HandError(
      `the driver ${name} cannot give hands the variables of their session; choose another driver`,
    );
  }
  return { path: TRUST_DIR, readOnly: true };
}

/** Whether git in the hand is carried to the proxy. */
export function hasGit(network: HandNetwork | undefined): boolean {
  return network !== undefined && network.mode !== "none" && network.tunnels?.git === true;
}

function repositoriesOf({ resources }: ProvisionCommand): GitRepository[] {
  return resources.flatMap(({ kind }) => (kind.case === "gitRepository" ? [kind.value] : []));
}

/** What a driver puts into the workspace itself; the rest is given by `Repositories` and `giveResources`. */
function inlineOf({ kind }: HandResourceMessage): HandResource[] {
  switch (kind.case) {
    case "inlineFile": {
      const { path, content, executable } = kind.value;
      return [{ kind: "inline", path, content, mode: executable ? 0o755 : 0o644 }];
    }
    case "storedFile":
    case "gitRepository":
    case "setupCommand":
    case "variable":
      return [];
    default:
      throw new HandError(
        `this hand agent cannot give a hand a resource of the kind ${kind.case ?? "(none)"}`,
      );
  }
}

function checkEnvironment({ image, container, network, packages }: EnvironmentSpec, driver: Driver): void {
  if (driver.capabilities.containers !== true) {
    if (packageCommands(packages) !== "")
      throw new HandError(
        `the driver ${driver.name} has no image to put packages into; choose the driver docker, or install what is needed on the hand agent's machine`,
      );
    const { workdir = "", runtime = "", pull = false } = container ?? {};
    const given = image !== "" ? "image" : workdir !== "" || runtime !== "" || pull ? "container" : undefined;
    if (given !== undefined) {
      throw new HandError(
        `the driver ${driver.name} takes no ${given}; remove "${given}" from the environment or choose another driver`,
      );
    }
  }
  const mode = network?.mode ?? NetworkMode.UNSPECIFIED;
  const wantsLess = mode === NetworkMode.NONE || mode === NetworkMode.LIMITED;
  if (wantsLess && driver.capabilities.network === "host") {
    throw new HandError(
      `the driver ${driver.name} cannot keep its hands from the network; choose another driver`,
    );
  }
}

function containerOf(environment: EnvironmentSpec | undefined): ContainerSpec {
  const { workdir = "", runtime = "", pull = false } = environment?.container ?? {};
  const packages = packageCommands(environment?.packages);
  return {
    image: environment?.image ?? "",
    pull,
    ...(packages === "" ? {} : { packages }),
    ...(workdir === "" ? {} : { workdir }),
    ...(runtime === "" ? {} : { runtime }),
  };
}

function warmOf(environment: EnvironmentSpec | undefined): WarmSpec | undefined {
  const { size = 0, maxAgeMs = 0n } = environment?.warmPool ?? {};
  if (size < 1) return undefined;
  const setup = environment?.setup ?? [];
  return {
    size,
    maxAgeMs: Number(maxAgeMs) || DEFAULT_WARM_AGE_MS,
    setup: {
      key: setup.length === 0 ? "" : JSON.stringify(setup),
      run: (hand, signal) => runSetup(hand, setup, signal),
    },
  };
}

function networkOf(environment: EnvironmentSpec | undefined): HandNetwork | undefined {
  const {
    mode = NetworkMode.UNSPECIFIED,
    allowedHosts = [],
    allowPackageManagers = false,
  } = environment?.network ?? {};
  switch (mode) {
    case NetworkMode.UNSPECIFIED:
      return undefined;
    case NetworkMode.NONE:
      return { mode: "none" };
    case NetworkMode.LIMITED:
      return {
        mode: "limited",
        allowedHosts: allowPackageManagers ? [...allowedHosts, ...PACKAGE_HOSTS] : allowedHosts,
      };
    case NetworkMode.UNRESTRICTED:
      return { mode: "unrestricted" };
    default:
      // A newer server's mode: less than it says may not be given, nor more.
      throw new HandError(`this hand agent does not know the network mode ${mode as number}`);
  }
}

/**
 * A hand that reaches nothing, or some hosts, has a relay for what goes to the proxy; a container that reaches all has one for
 * git, which programs are led to by git's own settings. One with the machine's network has none: no port of this machine is
 * opened for it.
 */
function withTunnels(
  network: HandNetwork | undefined,
  { handId, tunnels }: ProvisionCommand,
  driver: Driver,
): HandNetwork | undefined {
  if (tunnels === undefined) return network;
  // What drivers give where nothing is said: containers reach nothing.
  const byDefault = driver.capabilities.containers === true ? ({ mode: "none" } as const) : undefined;
  const own = network ?? byDefault;
  const { git, egressHosts } = tunnels;
  if (own?.mode === "unrestricted" && driver.capabilities.containers === true && git)
    return { mode: "unrestricted", tunnels: { handId, git, egressHosts: [] } };
  if (own === undefined || own.mode === "unrestricted") return network;
  const allowedHosts = own.mode === "limited" ? own.allowedHosts : [];
  return { mode: "limited", allowedHosts, tunnels: { handId, git, egressHosts } };
}

function limitsOf(environment: EnvironmentSpec | undefined): HandLimits {
  const limits = environment?.limits;
  if (limits === undefined) return {};
  return {
    ...(limits.memoryBytes > 0n ? { memoryBytes: Number(limits.memoryBytes) } : {}),
    ...(limits.cpuMillis > 0 ? { cpus: limits.cpuMillis / 1000 } : {}),
    ...(limits.pids > 0 ? { processes: limits.pids } : {}),
    ...(limits.tmpBytes > 0n ? { tmpBytes: Number(limits.tmpBytes) } : {}),
  };
}

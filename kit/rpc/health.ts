/** The standard gRPC health service. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import {
  Health,
  type HealthCheckRequest,
  type HealthCheckResponseSchema,
  HealthCheckResponse_ServingStatus as ServingStatus,
} from "../../proto/gen/grpc/health/v1/health_pb.js";
import { notFound } from "../errors.ts";
import type { RpcContext } from "./context.ts";
import { type BoundService, bindService } from "./service.ts";

type HealthResponse = MessageInitShape<typeof HealthCheckResponseSchema>;

/** What the server says about itself. "" stands for the server as a whole. */
export class HealthState {
  private readonly services = new Map<string, boolean>();
  private watchers = new Set<() => void>();

  constructor(serviceNames: readonly string[]) {
    for (const name of ["", ...serviceNames]) this.services.set(name, false);
  }

  /** Sets one service, or without a name all of them, and tells the watchers. */
  set(serving: boolean, serviceName?: string): void {
    for (const name of this.services.keys()) {
      if (serviceName === undefined || serviceName === name) this.services.set(name, serving);
    }
    for (const wake of [...this.watchers]) wake();
  }

  /** The service to mount. */
  bind(): BoundService {
    return bindService(Health, {
      check: async ({ service }) => {
        const status = this.statusOf(service);
        if (status === ServingStatus.SERVICE_UNKNOWN) throw notFound("service", service);
        return { status };
      },
      watch: (request, context) => this.watch(request, context),
    });
  }

  private statusOf(service: string): ServingStatus {
    const serving = this.services.get(service);
    if (serving === undefined) return ServingStatus.SERVICE_UNKNOWN;
    return serving ? ServingStatus.SERVING : ServingStatus.NOT_SERVING;
  }

  private async *watch(
    { service }: HealthCheckRequest,
    { signal }: RpcContext,
  ): AsyncGenerator<HealthResponse> {
    for (let told: ServingStatus | undefined; !signal.aborted; ) {
      const status = this.statusOf(service);
      if (status !== told) yield { status };
      told = status;
      if (this.statusOf(service) === told) await this.changed(signal);
    }
  }

  private changed(signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const wake = () => {
        this.watchers.delete(wake);
        signal.removeEventListener("abort", wake);
        resolve();
      };
      this.watchers.add(wake);
      signal.addEventListener("abort", wake, { once: true });
      if (signal.aborted) wake();
    });
  }
}

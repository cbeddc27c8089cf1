/**
 * What every long-lived part has in common, and how a program stops.
 *
 * A `Service` is started once. `stop` may be called before `start`, twice, or while `start` runs; it resolves when
 * nothing of the service is left, and never rejects because something was already gone.
 */
export interface Service {
  readonly name: string;
  start(): Promise<void>;
  stop(): Promise<void>;
}

/** Starts services in order and stops them in the opposite order; a failed start stops what had been started. */
export class ServiceGroup implements Service {
  readonly name: string;
  private readonly services: readonly Service[];
  private readonly running: Service[] = [];

  constructor(name: string, services: readonly Service[]) {
    this.name = name;
    this.services = services;
  }

  async start(): Promise<void> {
    for (const service of this.services) {
      this.running.push(service);
      try {
        await service.start();
      } catch (error) {
        await this.stop();
        throw error;
      }
    }
  }

  async stop(): Promise<void> {
    for (let service = this.running.pop(); service; service = this.running.pop()) await service.stop();
  }
}

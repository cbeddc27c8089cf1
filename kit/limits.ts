/** Bounds that both ends of a wire must agree on. */

/** No gRPC message is larger, in either direction; a larger one is refused and the connection lives on. */
export const MAX_GRPC_MESSAGE_BYTES = 3 * 1024 * 1024;

/** Payload and internal of one event together, as UTF-8. */
export const MAX_EVENT_BYTES = 32 * 1024 * 1024;

/** How many bytes of a stream may wait in memory for a slow reader before the writer has to wait. */
export const STREAM_WINDOW_BYTES = 256 * 1024;

/** How many messages of a stream are read ahead of a slow consumer. */
export const STREAM_READ_AHEAD = 4;

/** An error's text in the gRPC status, counted as it is encoded there: clients refuse trailers above 8 KiB. */
export const MAX_STATUS_MESSAGE_BYTES = 2048;

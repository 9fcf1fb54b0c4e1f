package nuncio.verify;

/**
 * A verified delivery. Signatures cover the body and, for {@code standard} and {@code ed25519}, {@code id} and {@code timestamp},
 * not the rest.
 *
 * @param id the same at every attempt; handle each id once
 * @param kind the kind of the event
 * @param sequence 1, 2, 3 … for each subscription
 * @param timestamp when the attempt was signed, as Unix time in seconds; null for {@code sha256}, which does not say it
 * @param account the id of the account that the event belongs to; null if it belongs to none
 */
public record Delivery(String id, String kind, long sequence, Long timestamp, String account) {}

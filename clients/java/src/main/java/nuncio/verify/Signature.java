package nuncio.verify;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HexFormat;
import java.util.List;
import java.util.function.Function;
import java.util.regex.Pattern;

/**
 * The signature of a delivery. Its headers say which format it has:
 *
 * <pre>
 * timestamp   Nuncio-Signature: t=&lt;unix seconds>,v1=&lt;hex>,v1=&lt;hex>        HMAC-SHA256 of "&lt;t>.&lt;body>"
 * sha256      Nuncio-Signature: sha256=&lt;hex>                              HMAC-SHA256 of the body
 * standard    webhook-signature: v1,&lt;base64> v1,&lt;base64>                  HMAC-SHA256 of "&lt;id>.&lt;t>.&lt;body>"
 * ed25519     webhook-signature: v1a,&lt;base64>                             Ed25519 of "&lt;id>.&lt;t>.&lt;body>"
 * </pre>
 *
 * @param id the delivery's id
 * @param timestamp Unix time in seconds; null for {@code sha256}, which has none
 * @param start what is signed before the body
 * @param values the values of the signature, each of another secret or key
 */
record Signature(Format format, String id, Long timestamp, byte[] start, List<byte[]> values) {
  enum Format {
    TIMESTAMP,
    SHA256,
    STANDARD,
    ED25519
  }

  /** The longest value of a header. The server's longest one has a few hundred characters. */
  private static final int VALUE_LENGTH_MAX = 4_096;

  /** The most values that are read. The server writes one for each live secret or key. */
  private static final int VALUES_MAX = 16;

  /** Visible ASCII without a comma, which would join two values. */
  static final Pattern IDENTIFIER = Pattern.compile("[!-+\\--~]{1,255}");

  static final Pattern SEQUENCE = Pattern.compile("[0-9]{1,15}");
  private static final Pattern SECONDS = Pattern.compile("[0-9]{1,12}");
  private static final Pattern HEX = Pattern.compile("([0-9a-f]{2})+");
  private static final Pattern ANYTHING = Pattern.compile("(?s).*");

  static String readHeader(Function<String, String> find, String name, Pattern form) {
    String value = find.apply(name);
    if (value == null) {
      throw new DeliveryException(
          Code.MISSING_HEADER,
          "The request has no header "
              + name
              + ". It is no delivery, or the operator has renamed the header (option headerNames).");
    }
    if (value.length() > VALUE_LENGTH_MAX || !form.matcher(value).matches()) throw malformed(name);
    return value;
  }

  /**
   * @param hasKeys whether the subscriber has public keys, and so expects {@code ed25519} where a delivery has values of both forms
   */
  static Signature read(Function<String, String> find, HeaderNames names, boolean hasKeys) {
    return find.apply("webhook-signature") == null ? readOwn(find, names) : readStandard(find, hasKeys);
  }

  private static Signature readStandard(Function<String, String> find, boolean hasKeys) {
    String id = readHeader(find, "webhook-id", IDENTIFIER);
    String time = readHeader(find, "webhook-timestamp", SECONDS);
    List<String> parts = List.of(readHeader(find, "webhook-signature", ANYTHING).split(" ", -1));
    List<String> hashed = valuesOf(parts, "v1,");
    List<String> signed = valuesOf(parts, "v1a,");
    boolean isSigned = !signed.isEmpty() && (hasKeys || hashed.isEmpty());
    return new Signature(
        isSigned ? Format.ED25519 : Format.STANDARD,
        id,
        Long.valueOf(time),
        bytesOf(id + "." + time + "."),
        decode("webhook-signature", isSigned ? signed : hashed, Signature::fromBase64));
  }

  private static Signature readOwn(Function<String, String> find, HeaderNames names) {
    String name = names.signature();
    List<String> parts = new ArrayList<>();
    for (String part : readHeader(find, name, ANYTHING).split(",", -1)) parts.add(part.strip());
    String id = readHeader(find, names.delivery(), IDENTIFIER);
    List<String> hashes = valuesOf(parts, "sha256=");
    if (!hashes.isEmpty()) {
      if (parts.size() > 1) throw malformed(name);
      return new Signature(Format.SHA256, id, null, new byte[0], decode(name, hashes, Signature::fromHex));
    }
    List<String> times = valuesOf(parts, "t=");
    if (times.size() != 1 || !SECONDS.matcher(times.get(0)).matches()) throw malformed(name);
    return new Signature(
        Format.TIMESTAMP,
        id,
        Long.valueOf(times.get(0)),
        bytesOf(times.get(0) + "."),
        decode(name, valuesOf(parts, "v1="), Signature::fromHex));
  }

  /** The signed bytes. */
  byte[] signed(byte[] body) {
    byte[] all = java.util.Arrays.copyOf(start, start.length + body.length);
    System.arraycopy(body, 0, all, start.length, body.length);
    return all;
  }

  private static List<String> valuesOf(List<String> parts, String start) {
    return parts.stream().filter(part -> part.startsWith(start)).map(part -> part.substring(start.length())).toList();
  }

  /** Leaves out values of another form, because others may match. */
  private static List<byte[]> decode(String name, List<String> values, Function<String, byte[]> decodeOne) {
    if (values.isEmpty() || values.size() > VALUES_MAX) throw malformed(name);
    return values.stream().map(decodeOne).filter(value -> value != null).toList();
  }

  private static byte[] fromHex(String text) {
    return HEX.matcher(text).matches() ? HexFormat.of().parseHex(text) : null;
  }

  /** Returns the bytes, or null if the text is not base64. Padding can be left out. */
  static byte[] fromBase64(String text) {
    try {
      return Base64.getDecoder().decode(text);
    } catch (IllegalArgumentException error) {
      return null;
    }
  }

  static byte[] bytesOf(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  private static DeliveryException malformed(String name) {
    return new DeliveryException(
        Code.MALFORMED_HEADER, "The header " + name + " does not have the form of a delivery's.");
  }
}

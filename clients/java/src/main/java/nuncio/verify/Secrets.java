package nuncio.verify;

import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.util.List;
import java.util.regex.Pattern;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** Signatures by a secret: {@code timestamp}, {@code sha256} and {@code standard}. */
final class Secrets {
  /** Bodies up to this size are examined for the reason why no secret matches. */
  private static final int EXAMINED_BYTES_MAX = 300_000;

  /** The signed bytes of a {@code timestamp} signature, which are no JSON. */
  private static final Pattern TIMED = Pattern.compile("[0-9]+\\.(?![0-9])");

  private Secrets() {}

  static void check(Signature signature, byte[] body, List<String> secrets) {
    if (secrets.isEmpty()) {
      throw new DeliveryException(
          Code.NO_SECRET,
          "A delivery signed with " + signature.format().name().toLowerCase(java.util.Locale.ROOT) + " needs a secret.");
    }
    boolean isEncoded = signature.format() == Signature.Format.STANDARD;
    List<byte[]> keys = secrets.stream().map(secret -> read(secret, isEncoded)).toList();
    if (isOtherFormat(signature, body) || !isSigned(signature, body, keys)) {
      throw new DeliveryException(Code.NO_MATCHING_SECRET, reasonOf(signature, body, keys));
    }
  }

  /**
   * The body of a {@code sha256} signature could be the signed bytes of a {@code timestamp} one, which nothing would protect from
   * replays.
   */
  private static boolean isOtherFormat(Signature signature, byte[] body) {
    String start = new String(body, 0, Math.min(body.length, 32), StandardCharsets.ISO_8859_1);
    return signature.format() == Signature.Format.SHA256 && TIMED.matcher(start).lookingAt();
  }

  private static byte[] read(String secret, boolean isEncoded) {
    String text = secret == null ? "" : secret;
    String bare = isEncoded && text.startsWith("whsec_") ? text.substring(6) : text;
    byte[] key = isEncoded ? Signature.fromBase64(bare) : Signature.bytesOf(text);
    if (!text.equals(text.strip()) || key == null || key.length == 0) {
      throw new DeliveryException(
          Code.MALFORMED_SECRET, "A secret is whsec_ and base64, without spaces around it.");
    }
    return key;
  }

  private static boolean isSigned(Signature signature, byte[] body, List<byte[]> keys) {
    for (byte[] key : keys) {
      byte[] expected = hash(key, signature.start(), body);
      for (byte[] value : signature.values()) if (MessageDigest.isEqual(value, expected)) return true;
    }
    return false;
  }

  private static byte[] hash(byte[] key, byte[] start, byte[] body) {
    try {
      Mac mac = Mac.getInstance("HmacSHA256");
      mac.init(new SecretKeySpec(key, "HmacSHA256"));
      mac.update(start);
      return mac.doFinal(body);
    } catch (GeneralSecurityException error) {
      throw new IllegalStateException(error);
    }
  }

  private static String reasonOf(Signature signature, byte[] body, List<byte[]> keys) {
    if (body.length == 0) return "The body is empty: something has read it before.";
    for (String text : rewritten(body)) {
      if (isSigned(signature, Signature.bytesOf(text), keys)) {
        return "The body was changed: the secret matches the same JSON with other white space. "
            + "Pass the bytes of the request.";
      }
    }
    return "The secret is of another subscription or was replaced, or the body was changed on its way.";
  }

  /** The same JSON as other serializers write it: without spaces, and with one after each comma and colon. */
  private static List<String> rewritten(byte[] body) {
    if (body.length > EXAMINED_BYTES_MAX) return List.of();
    String text = new String(body, StandardCharsets.UTF_8);
    StringBuilder compact = new StringBuilder();
    StringBuilder spaced = new StringBuilder();
    boolean isText = false;
    boolean isEscaped = false;
    for (char each : text.toCharArray()) {
      if (!isText && " \t\r\n".indexOf(each) >= 0) continue;
      compact.append(each);
      spaced.append(each);
      if (!isText && (each == ',' || each == ':')) spaced.append(' ');
      if (each == '"' && !isEscaped) isText = !isText;
      isEscaped = isText && each == '\\' && !isEscaped;
    }
    return List.of(compact.toString(), spaced.toString(), text.strip());
  }
}

package nuncio.verify;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** JSON (RFC 8259) as far as this library needs it: reading what {@code /meta} responds with, and writing texts. */
final class Json {
  private static final int DEPTH_MAX = 64;

  private final String text;
  private int at;

  private Json(String text) {
    this.text = text;
  }

  /**
   * Returns a map, a list, a text, a number, a boolean or null.
   *
   * @throws IllegalArgumentException if the text is no JSON
   */
  static Object read(String text) {
    Json json = new Json(text);
    Object value = json.value(0);
    json.skipSpace();
    if (json.at < text.length()) throw json.failure();
    return value;
  }

  static String write(String text) {
    StringBuilder written = new StringBuilder("\"");
    for (char each : text.toCharArray()) {
      if (each == '"' || each == '\\') written.append('\\').append(each);
      else if (each < ' ') written.append(String.format("\\u%04x", (int) each));
      else written.append(each);
    }
    return written.append('"').toString();
  }

  private Object value(int depth) {
    if (depth > DEPTH_MAX) throw failure();
    skipSpace();
    char first = at < text.length() ? text.charAt(at) : ' ';
    return switch (first) {
      case '{' -> object(depth);
      case '[' -> list(depth);
      case '"' -> string();
      case 't' -> word("true", Boolean.TRUE);
      case 'f' -> word("false", Boolean.FALSE);
      case 'n' -> word("null", null);
      default -> number();
    };
  }

  private Map<String, Object> object(int depth) {
    Map<String, Object> object = new LinkedHashMap<>();
    at++;
    if (isNext('}')) return object;
    do {
      skipSpace();
      String name = string();
      if (!isNext(':')) throw failure();
      object.put(name, value(depth + 1));
    } while (isNext(','));
    if (!isNext('}')) throw failure();
    return object;
  }

  private List<Object> list(int depth) {
    List<Object> list = new ArrayList<>();
    at++;
    if (isNext(']')) return list;
    do {
      list.add(value(depth + 1));
    } while (isNext(','));
    if (!isNext(']')) throw failure();
    return list;
  }

  private String string() {
    if (at >= text.length() || text.charAt(at++) != '"') throw failure();
    StringBuilder string = new StringBuilder();
    while (at < text.length()) {
      char each = text.charAt(at++);
      if (each == '"') return string.toString();
      string.append(each == '\\' ? escaped() : each);
    }
    throw failure();
  }

  private char escaped() {
    if (at >= text.length()) throw failure();
    char each = text.charAt(at++);
    return switch (each) {
      case '"', '\\', '/' -> each;
      case 'b' -> '\b';
      case 'f' -> '\f';
      case 'n' -> '\n';
      case 'r' -> '\r';
      case 't' -> '\t';
      case 'u' -> {
        if (at + 4 > text.length()) throw failure();
        at += 4;
        yield (char) Integer.parseInt(text.substring(at - 4, at), 16);
      }
      default -> throw failure();
    };
  }

  private Object word(String word, Object value) {
    if (!text.startsWith(word, at)) throw failure();
    at += word.length();
    return value;
  }

  private Double number() {
    int start = at;
    while (at < text.length() && "+-.0123456789eE".indexOf(text.charAt(at)) >= 0) at++;
    return Double.valueOf(text.substring(start, at));
  }

  private boolean isNext(char wanted) {
    skipSpace();
    if (at >= text.length() || text.charAt(at) != wanted) return false;
    at++;
    return true;
  }

  private void skipSpace() {
    while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) at++;
  }

  private IllegalArgumentException failure() {
    return new IllegalArgumentException("no JSON at character " + at);
  }
}

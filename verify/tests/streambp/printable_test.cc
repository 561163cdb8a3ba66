#include "streambp/printable.h"

#include <gtest/gtest.h>

#include "streambp/error.h"

namespace streambp {
namespace {

TEST(Printable, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(printable("\x1b[31mred\x1b]0;owned\x07"), "\\x1b[31mred\\x1b]0;owned\\x07");
  EXPECT_EQ(printable("two\nlines\r\tand more"), "two\\nlines\\r\\tand more");
  EXPECT_EQ(printable(std::string_view("a\0b\x7f", 4)), "a\\x00b\\x7f");
  EXPECT_EQ(printable("\xC2\x9B"
                      "31m"),
            "\\u009b31m");                                             // C1
  EXPECT_EQ(printable("\xE2\x80\xAE\xE2\x81\xA6"), "\\u202e\\u2066");  // right to left
  EXPECT_EQ(printable("\xE2\x80\xA8\xEF\xBB\xBF"), "\\u2028\\ufeff");  // a line separator, nothing at all
  EXPECT_EQ(printable("\xF3\xA0\x81\x81"), "\\U000e0041");             // a tag
  EXPECT_EQ(printable("caf\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80"),
            "caf\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80");
}

TEST(Printable, EscapesBytesThatAreNotUtf8) {
  EXPECT_EQ(printable("\xFF\xFE"), "\\xff\\xfe");
  EXPECT_EQ(printable("a\xC3"), "a\\xc3");                                    // cut off
  EXPECT_EQ(printable("\xC0\x9B\xE0\x80\x9B"), "\\xc0\\x9b\\xe0\\x80\\x9b");  // overlong
  EXPECT_EQ(printable("\xED\xA0\x80"), "\\xed\\xa0\\x80");                    // a surrogate
  EXPECT_EQ(printable("\xF4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");           // beyond Unicode
}

TEST(Printable, CutsTheMiddle) {
  EXPECT_EQ(printable("0123456789", 10), "0123456789");
  EXPECT_EQ(printable("0123456789x", 10), "0123...89x");
  const std::string cut = printable(std::string(1'000'000, 'x'));
  EXPECT_EQ(cut.size(), kPrintedMessage);
  EXPECT_NE(cut.find("x...x"), std::string::npos);
  // Never within a character.
  const std::string euro = "\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC";
  for (size_t most = 4; most < euro.size(); ++most) {
    EXPECT_LE(printable(euro, most).size(), most);
    EXPECT_EQ(printable(euro, most).find('\\'), std::string::npos) << most;
  }
}

TEST(Printable, LeavesAloneWhatHasBeenThroughIt) {
  const std::string foreign = "C:\\x1b \x1b[0m \xC2\x85 \xFF " + std::string(2000, '\n');
  const std::string once = printable(foreign);
  EXPECT_EQ(printable(once), once);
}

TEST(Printable, IsWhatEveryInputErrorSays) {
  const std::string name = "\x1b[31m" + std::string(100'000, 'n');
  const InputError formatted("{}: no such tensor", name), whole(name), again("file: {}", formatted.what());
  for (const InputError& error : {formatted, whole, again}) {
    const std::string what = error.what();
    EXPECT_LE(what.size(), kPrintedMessage);
    EXPECT_EQ(what.find('\x1b'), std::string::npos);
  }
  EXPECT_TRUE(std::string(formatted.what()).starts_with("\\x1b[31mnnn"));
  EXPECT_TRUE(std::string(formatted.what()).ends_with("nnn: no such tensor"));
  EXPECT_TRUE(std::string(again.what()).starts_with("file: \\x1b[31mnnn"));
}

}  // namespace
}  // namespace streambp

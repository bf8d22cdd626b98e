// Tests HTML, roff and language extraction on pages like those of the demo corpus, and that no input crashes it.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <csignal>
#include <random>
#include <string>

#include "base/error.h"
#include "base/test_bounds.h"
#include "base/test_sanitized.h"
#include "data/clean.h"
#include "data/html.h"
#include "data/language.h"
#include "data/roff.h"

namespace molen::data {
namespace {

std::string html(const std::string& page, const std::string& root = "") {
  HtmlRules rules;
  rules.root_id = root;
  return join_blocks(html_blocks(page, rules));
}

TEST(Html, BlocksAndInlineText) {
  EXPECT_EQ(html("<p>Een <b>twee</b>\n  drie</p><p>vier</p>"), "Een twee drie\n\nvier\n");
  EXPECT_EQ(html("<ul><li>a</li><li>b <code>c</code></li></ul><p>d</p>"), "a\nb c\n\nd\n");
  EXPECT_EQ(html("<p>x</p><pre>if (a)\n  b &lt; c\n</pre><p>y</p>"), "x\n\nif (a)\n  b < c\n\ny\n");
  EXPECT_EQ(html("<pre>a&nbsp;&nbsp;b</pre>"), "a  b\n") << "each is a space where spaces count";
  EXPECT_EQ(html("<p>een<br>twee<br/>drie</p>"), "een\ntwee\ndrie\n");
  EXPECT_EQ(html("<table><tr><td>a</td><td>b</td></tr><tr><td>c</td></tr></table>"), "a b\nc\n");
}

TEST(Html, Entities) {
  EXPECT_EQ(html("<p>R&amp;D &#233;&#x20AC;&eacute;&alpha; a&nbsp;b &unknown; & soft&shy;ly</p>"),
            "R&D \xc3\xa9\xe2\x82\xac\xc3\xa9\xce\xb1 a b &unknown; & softly\n");
  EXPECT_EQ(html("<p>a&#0;&#xD800;&#99999999999;&#150;b</p>"), "ab\n") << "no characters of any text";
}

TEST(Html, BoilerplateGoes) {
  EXPECT_EQ(
      html("<body><div class=\"navheader\"><p>prev</p></div><div class='x toc'><p>t</p></div><p>text</p>"
           "<script>var a = '</p><p>';</script><style>p{}</style><nav>n</nav><!-- c --><footer>f</footer></body>"),
      "text\n");
  EXPECT_EQ(html("<head><title>T</title></head><body><p>text</p></body>"), "text\n") << "the head is no text";
}

TEST(Html, RootWithTitleOnceAndKeysOfOneSystem) {
  const std::string page =
      "<html><head><title>Navigator</title></head><body><header>menu</header><div "
      "id=\"DisplayArea\"><h1>Navigator</h1><p>Druk "
      "op <span class=\"switchinline\"><span hidden=\"true\" id=\"MAC1\" "
      "class=\"MAC\"><span>Commando</span></span><span "
      "hidden=\"true\" id=\"default1\">Ctrl</span></span> + "
      "F</p></div><footer>debug</footer><p>after</p></body></html>";
  EXPECT_EQ(html(page, "DisplayArea"), "Navigator\n\nDruk op Ctrl + F\n");
  EXPECT_EQ(html("<body><p>x</p></body>", "DisplayArea"), "");
}

TEST(Html, XmlPages) {
  HtmlRules rules;
  rules.xml = true;
  rules.drop_tags = {"info", "links"};
  EXPECT_EQ(join_blocks(html_blocks("<page><info><credit>Jan &lt;j@x.nl></credit></info><title>T</title><p>een</p>"
                                    "<links type='topic'/><steps><item><p>twee</p></item></steps></page>",
                                    rules)),
            "T\n\neen\n\ntwee\n");
}

TEST(Html, TolerantOfWhatIsBroken) {
  EXPECT_EQ(html("<p>a</b></i></p></div><p>b"), "a\n\nb\n");
  EXPECT_EQ(html("a < b <3 <"), "a < b <3 <\n");
  EXPECT_EQ(html("<p class=x id='y>open"), "");
  EXPECT_EQ(html("<!-- never closed <p>x</p>"), "");
  EXPECT_EQ(html("<script>never closed"), "");
  EXPECT_EQ(html("<div class=toc><p>x</div>after"), "after\n") << "an unclosed element inside a dropped one";
}

std::string repeat(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

// Returns the reason why a page is refused, or "". Checks in a child process that the page takes no more time and
// memory than base/test_bounds.h allows; then extracts it here, for what the caller keeps of it.
template <class Extract>
std::string refusal(const Extract& extract) {
  const std::string why = bounded("a page", extract);
  try {
    extract();
    EXPECT_EQ(why, "");
  } catch (const UsageError& error) {
    EXPECT_EQ(why, error.what());
  }
  return why;
}

TEST(Html, HostilePagesAreBoundedOrRefused) {
  const auto read = [](const std::string& page) { return refusal([&] { html(page); }); };
  EXPECT_NE(read(repeat("<b><div></i>x", 200000)).find("nested deeper"), std::string::npos);
  EXPECT_NE(read(repeat("<i>", 500000)).find("nested deeper"), std::string::npos);
  EXPECT_EQ(read(repeat("<b>", 400) + repeat("</i>", 60000)), "");
  EXPECT_EQ(read(repeat("<!--", 500000)), "");
  EXPECT_EQ(read("<p " + repeat("a='b' ", 200000) + ">x"), "");
  EXPECT_EQ(read(repeat("&#", 500000)), "");
}

TEST(Html, XmlEntitiesDoNotMultiply) {
  std::string page = "<!DOCTYPE page [<!ENTITY a0 'ha'>";
  for (int i = 1; i < 40; ++i) page += fmt::format("<!ENTITY a{} '&a{};&a{};'>", i, i - 1, i - 1);
  page += "<!ENTITY file SYSTEM 'file:///etc/passwd'>]><page><p>x&a39;&file;y</p></page>";
  HtmlRules rules;
  rules.xml = true;
  std::string text;
  EXPECT_EQ(refusal([&] { text = join_blocks(html_blocks(page, rules)); }), "");
  EXPECT_LE(text.size(), 4u) << text.substr(0, 100);
}

// Makes a page of markup pieces in random order with random bytes between them.
std::string random_markup(const std::vector<std::string>& pieces) {
  std::string page;
  for (const int piece :
       *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, static_cast<int>(pieces.size()) + 8)))
    page += static_cast<std::size_t>(piece) < pieces.size() ? pieces[static_cast<std::size_t>(piece)]
                                                            : std::string(1, *rc::gen::arbitrary<char>());
  return page;
}

RC_GTEST_PROP(Html, NothingCrashes, ()) {
  const std::string page = random_markup({"<",
                                          ">",
                                          "</",
                                          "<p>",
                                          "</p>",
                                          "<pre>",
                                          "</pre>",
                                          "<script>",
                                          "</script",
                                          "<!--",
                                          "-->",
                                          "<body>",
                                          "<div class=\"toc\">",
                                          "</div>",
                                          "&#",
                                          "&amp;",
                                          "<br/>",
                                          "id=\"",
                                          "'",
                                          "text"});
  HtmlRules rules;
  for (const char* root : {"", "x"}) {
    rules.root_id = root;
    for (const Block& block : html_blocks(page, rules)) RC_ASSERT(!block.text.empty());
  }
}

std::string roff(const std::string& page) {
  return join_blocks(roff_blocks(page));
}

TEST(Roff, PageOfAProgram) {
  const std::string page =
      ".\\\" comment\n.TH LS 1 \"September 2022\"\n.SH NAAM\nls \\- toon de inhoud\n.SH SAMENVATTING\n"
      "\\fBls\\fP [\\fI\\,OPTIE\\/\\fP]...\n.SH BESCHRIJVING\nToon\ninformatie.\n.PP\nTweede.\n.TP\n\\fB\\-a\\fP, "
      "\\fB\\-\\-all\\fP\n"
      "alle namen\n.TP\n.B \\-b\ntekst \\(aqx\\(aq \\[u20AC] \\(co\n.SH AUTEUR\nJan <jan@x.nl>\n.SH "
      "COPYRIGHT\nniet\n.SH \"ZIE OOK\"\n"
      ".BR dir (1),\n.IR een \" twee\"\n.SH VERTALING\nook niet\n";
  EXPECT_EQ(
      roff(page),
      "NAAM\n\nls - toon de inhoud\n\nSAMENVATTING\n\nls [OPTIE]...\n\nBESCHRIJVING\n\nToon informatie.\n\nTweede.\n\n"
      "-a, --all\nalle namen\n-b\ntekst 'x' \xe2\x82\xac \xc2\xa9\n\nZIE OOK\n\ndir(1), een twee\n");
}

TEST(Roff, DefinitionsConditionalsTablesAndLinks) {
  const std::string head = ".TH X 1\n.SH N\n";
  EXPECT_EQ(roff(head + ".de XX\nbody \\\\$1\n..\ntext\n.XX word\nmore\n"), "N\n\ntext body word more\n");
  EXPECT_EQ(roff(head + ".if n \\{\\\n.nh\nshown\n.\\}\n.ie t x\n.el y\nkept\n"), "N\n\nshown y kept\n");
  EXPECT_EQ(roff(head + "x\n.TS\nl l.\na\tb\nc\td\n.TE\nafter\n"), "N\n\nx\n\na b\nc d\n\nafter\n");
  EXPECT_EQ(roff(head + "see\n.UR https://x.org\nthe page\n.UE .\nor\n.MT a@b.nl\n.ME .\n"),
            "N\n\nsee the page. or .\n");
  EXPECT_EQ(roff(head + ".nf\na\n  b\n.fi\nc\n"), "N\n\na\n  b\n\nc\n");
  EXPECT_EQ(roff(head + ".ds XX Hello\n\\*(XX \\*[XX] \\s-1small\\s0 z\n"), "N\n\nHello Hello small z\n");
  EXPECT_EQ(roff(head + ".IP \\(bu 2\neen\n.IP term\ntwee\n"), "N\n\n\xe2\x80\xa2 een\nterm\ntwee\n");
  EXPECT_EQ(roff(".\\\" x\n.so man1/ls.1\n"), "");
}

TEST(Roff, Mdoc) {
  EXPECT_EQ(roff(".Dd x\n.Dt PROG 1\n.Os\n.Sh NAAM\n.Nm prog\n.Nd doet iets\n.Sh SYNOPSIS\n.Nm\n.Op Fl a Ar file\n.Sh "
                 "TEKST\n.Xr ls 1 ,\n.Dq x\n"),
            "NAAM\n\nprog \xe2\x80\x94 doet iets\n\nSYNOPSIS\n\nprog [-a file]\n\nTEKST\n\nls(1), "
            "\xe2\x80\x9cx\xe2\x80\x9d\n");
}

TEST(Roff, HostilePagesAreBoundedOrRefused) {
  const std::string head = ".TH X 1\n.SH N\n";
  std::string text;
  const auto read = [&](const std::string& page) { return refusal([&] { text = roff(head + page); }); };
  // Nine kilobytes that expand to 100 GB.
  const std::string nested = ".ds c " + std::string(100, 'A') + "\n.ds b " + repeat("\\*c", 1000) + "\n.ds a " +
                             repeat("\\*b", 1000) + "\n" + repeat("\\*a", 1000) + "\n";
  read(nested);
  EXPECT_LT(text.size(), std::size_t{1} << 20);
  read(".ds a \\*a\\*a\\*a\\*a\n\\*a\n");
  EXPECT_LT(text.size(), std::size_t{1} << 20);
  EXPECT_NE(read(".nr x 1\n.while 1 \\{\\\nhello\n.\\}\n"), "");
  EXPECT_NE(
      read(".de b\n" + repeat("AAAA\n", 1000) + "..\n.de c\n" + repeat(".b\n", 1000) + "..\n" + repeat(".c\n", 1000)),
      "");
  EXPECT_NE(refusal([&] { roff(".Dd x\n.Dt X 1\n.Os\n.Sh N\n" + repeat(".Bl -tag\n.It a\n", 50000)); }), "");
  // A page cannot make the reader open a file.
  for (const char* file : {"etc/passwd", "/etc/passwd"}) {
    read(std::string("x\n.so ") + file + "\n");
    EXPECT_EQ(text.find("root:"), std::string::npos);
  }
}

// An error reports how mandoc ended; a page about which mandoc only warns is read.
TEST(Roff, SaysHowMandocEnded) {
  ::signal(SIGHUP, SIG_DFL);  // under nohup the stand-in below would ignore it
  const fs::path folder = fs::temp_directory_path() / fmt::format("molen-mandoc-{}", ::getpid());
  fs::create_directories(folder);
  const std::string path = ::getenv("PATH");
  const auto with = [&](const std::string& end) {
    write_file_atomic(folder / "mandoc", "#!/bin/sh\necho '<p>text</p>'\n" + end + "\n");
    fs::permissions(folder / "mandoc", fs::perms::owner_all);
    ::setenv("PATH", (folder.string() + ":" + path).c_str(), 1);
    std::string text;
    const std::string why = refusal([&] { text = roff(".TH X 1\n"); });
    ::setenv("PATH", path.c_str(), 1);
    return why + text;
  };
  EXPECT_EQ(with("exit 0"), "text\n");
  EXPECT_EQ(with("exit 4"), "text\n");
  EXPECT_EQ(with("exit 5"), "mandoc gives up on the page (status 5)");
  EXPECT_EQ(with("kill -HUP $$"), "mandoc gives up on the page (signal 1)");
  EXPECT_EQ(with("kill -KILL $$"), "mandoc gives up on the page (signal 9)");
  ::setenv("PATH", "/nowhere", 1);
  try {
    roff(".TH X 1\n");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "mandoc is not installed, which reads manual pages: apt-get install mandoc");
  }
  ::setenv("PATH", path.c_str(), 1);
  fs::remove_all(folder);
}

// A dropped section leaves no heading: its words do not make the same words before it a repeated title.
TEST(Html, ASectionThatIsDroppedIsNoHeading) {
  HtmlRules rules;
  rules.drop_sections = {"AUTEUR"};
  EXPECT_EQ(join_blocks(html_blocks("<body><p>AUTEUR</p><section><h1>AUTEUR</h1>x</section></body>", rules)),
            "AUTEUR\n");
  EXPECT_EQ(join_blocks(html_blocks("<body><p>A</p><h1>A</h1><p>A</p></body>", rules)), "A\n\nA\n");
  EXPECT_EQ(join_blocks(html_blocks("<body><p>A</p></body>", rules)), "A\n");
}

// Reads pieces of manual pages in random order: the reader must accept any HTML from mandoc.
TEST(Roff, NothingCrashes) {
  const std::vector<std::string> pieces{
      "\n.",     "\n",  ".TP", "SH ",    "\\f",    "\\(",     "\\[", "]", "\\*", "\\s",   "\\h'",  ".de",   "..",
      ".if \\{", "\\}", ".TS", ".ds a ", ".Op Fl", ".It Xr ", "\"",  " ", "a",   ".nf\n", ".EE\n", ".Bd\n", "\\"};
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    std::string page;
    for (int i = 0; i < 60; ++i) page += pieces[random() % pieces.size()];
    try {
      for (const Block& block : roff_blocks(page)) EXPECT_FALSE(block.text.empty());
    } catch (const UsageError&) {
    }
  }
}

TEST(Text, CountsAddressesByTheirShape) {
  EXPECT_EQ(count_addresses("a.b+c@d-e.org, x@y (no), @z.w, q_1@r.s.. and a@@b.c"), 2);
  EXPECT_EQ(count_addresses("ann@example.com bob@mail.example.org cy@example.net dee@test.nl"), 1);
  EXPECT_EQ(count_addresses("at@end.of"), 1);
  for (const char* name : {"a", "7", ".", "-", "_", "+"})
    EXPECT_EQ(count_addresses(std::string(name) + "@b.c"), 1) << name;
  for (const char* host : {"b_c.d", "b+c.d", "b-c.d", "b.c"})
    EXPECT_EQ(count_addresses(std::string("a@") + host), 1) << host;
  for (const char* name : {"", " ", "!", "=", "/"}) EXPECT_EQ(count_addresses(std::string(name) + "@b.c"), 0) << name;
  EXPECT_EQ(count_addresses("at@"), 0);
  EXPECT_EQ(count_addresses(""), 0);
}

TEST(Language, TellsLanguagesApart) {
  EXPECT_EQ(detect_language("De kat zit op de mat en kijkt naar het raam van de buren."), "nl");
  EXPECT_EQ(detect_language("The cat sits on the mat and looks at the window of the house."), "en");
  EXPECT_EQ(detect_language("Die Katze sitzt auf der Matte und sieht das Fenster von den Nachbarn."), "de");
  EXPECT_EQ(detect_language("Kissa istuu matolla ja katsoo ikkunaa, mutta se ei ole kotona."), "fi");
  EXPECT_EQ(detect_language("Katten sidder p\xc3\xa5 m\xc3\xa5tten og ser p\xc3\xa5 naboens vindue hver eneste dag."),
            "da");
  EXPECT_EQ(detect_language("To jest tekst o programie, kt\xc3\xb3ry czyta pliki i zapisuje je na dysku."), "pl");
  EXPECT_EQ(detect_language(
                "\u05d4\u05d7\u05ea\u05d5\u05dc \u05d9\u05d5\u05e9\u05d1 \u05e2\u05dc \u05d4\u05e9\u05d8\u05d9\u05d7 "
                "\u05d5\u05de\u05e1\u05ea\u05db\u05dc \u05d1\u05d7\u05dc\u05d5\u05df \u05e9\u05dc "
                "\u05d4\u05e9\u05db\u05e0\u05d9\u05dd"),
            "he");
  EXPECT_EQ(detect_language("x = 3; y = 4"), "");
  EXPECT_EQ(detect_language("\xff\xfe no text"), "");
  const std::string english = "This is how the file is read by the program that you have started with it.";
  EXPECT_FALSE(is_in_language(english, "nl"));
  EXPECT_TRUE(is_in_language(english, "en"));
  EXPECT_TRUE(is_in_language("for of with", "nl")) << "too short to say";
  EXPECT_TRUE(is_in_language("svc.SplitLines(inputstr: str, [keepbreaks: int]): str[0..*]", "nl")) << "no prose";
  EXPECT_TRUE(is_in_language(english, "code"));
}

TEST(Text, Utf8) {
  EXPECT_TRUE(is_clean_utf8("na\xc3\xafve \xe2\x82\xac \xf0\x9f\x98\x80"));
  for (const std::string bad : {"\xff", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80"})
    EXPECT_FALSE(is_clean_utf8(bad));
  EXPECT_FALSE(is_clean_utf8(std::string("a\0b", 3)));
}

TEST(Text, PlainTextIsCutAtEmptyLines) {
  const auto blocks = split_plain("een\r\ntwee  \n\n\n \t\ndrie\x01\n");
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_EQ(blocks[0].text, "een\ntwee");
  EXPECT_EQ(blocks[1].text, "drie");
  EXPECT_EQ(join_blocks(blocks), "een\ntwee\n\ndrie\n");
}

}  // namespace
}  // namespace molen::data

// HTML, roff and language: what comes out of pages like those of the demo corpus, and that nothing crashes them.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <chrono>
#include <string>

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
  EXPECT_EQ(html("<p>een<br>twee<br/>drie</p>"), "een\ntwee\ndrie\n");
  EXPECT_EQ(html("<table><tr><td>a</td><td>b</td></tr><tr><td>c</td></tr></table>"), "a b\nc\n");
}

TEST(Html, Entities) {
  EXPECT_EQ(html("<p>R&amp;D &#233;&#x20AC;&eacute; a&nbsp;b &unknown; & &#0; &#xD800; &#99999999999;</p>"),
            "R&D \xc3\xa9\xe2\x82\xac\xc3\xa9 a b &unknown; & &#0; &#xD800; &#99999999999;\n");
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

TEST(Html, TimeIsLinear) {
  std::string page;
  for (int i = 0; i < 200000; ++i) page += "<b><div></i>x";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(html(page).empty());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

// Pieces of markup in any order and any bytes between them.
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

TEST(Roff, PageOfAProgram) {
  const std::string page =
      ".\\\" comment\n.TH LS 1 \"September 2022\"\n.SH NAAM\nls \\- toon de inhoud\n.SH SAMENVATTING\n"
      "\\fBls\\fP [\\fI\\,OPTIE\\/\\fP]...\n.SH BESCHRIJVING\nToon\ninformatie.\n.PP\nTweede.\n.TP\n\\fB\\-a\\fP, "
      "\\fB\\-\\-all\\fP\n"
      "alle namen\n.TP\n.B \\-b\ntekst \\(aqx\\(aq \\[u20AC] \\(co\n.SH AUTEUR\nJan <jan@x.nl>\n.SH "
      "COPYRIGHT\nniet\n.SH \"ZIE OOK\"\n"
      ".BR dir (1),\n.IR een \" twee\"\n.SH VERTALING\nook niet\n";
  EXPECT_EQ(
      join_blocks(roff_blocks(page)),
      "NAAM\n\nls - toon de inhoud\n\nSAMENVATTING\n\nls [OPTIE]...\n\nBESCHRIJVING\n\nToon informatie.\n\nTweede.\n\n"
      "-a, --all\nalle namen\n-b\ntekst 'x' \xe2\x82\xac \xc2\xa9\n\nZIE OOK\n\ndir(1), een twee\n");
}

TEST(Roff, DefinitionsConditionalsTablesAndLinks) {
  EXPECT_EQ(join_blocks(roff_blocks(".de XX\nbody\n.  .\ntext\n.am YY\nb\n..\nmore\n")), "text more\n");
  EXPECT_EQ(join_blocks(roff_blocks(".if n \\{\\\n.nh\nskipped\n.\\}\n.ie t x\n.el y\nkept\n.TS\nl l\n.TE\nafter\n")),
            "kept\n\nafter\n");
  EXPECT_EQ(join_blocks(roff_blocks("see\n.UR https://x.org\nthe page\n.UE .\nor\n.MT a@b.nl\n.ME .\n")),
            "see the page <https://x.org>. or .\n");
  EXPECT_EQ(join_blocks(roff_blocks(".nf\na\n  b\n.fi\nc\n")), "a\n  b\n\nc\n");
  EXPECT_EQ(join_blocks(roff_blocks(".ds XX Hello\n\\*(XX \\*[XX] \\s-1small\\s0 \\h'1i'w\\v'2'\\0\\n(xxz\n")),
            "Hello Hello small w z\n");
  EXPECT_TRUE(roff_blocks(".so man1/ls.1\n").empty());
  EXPECT_EQ(join_blocks(roff_blocks(".IP \\(bu 2\neen\n.IP term\ntwee\n")), "\xe2\x80\xa2 een\nterm\ntwee\n");
}

TEST(Roff, Mdoc) {
  EXPECT_EQ(join_blocks(roff_blocks(
                ".Sh NAAM\n.Nm prog\n.Nd doet iets\n.Sh SYNOPSIS\n.Nm\n.Op Fl a Ar file\n.Xr ls 1 ,\n.Dq x\n")),
            "NAAM\n\nprog - doet iets\n\nSYNOPSIS\n\nprog [-a file] ls(1), \"x\"\n");
}

TEST(Roff, StringsThatNameThemselvesEnd) {
  EXPECT_NO_THROW(roff_blocks(".ds a \\*a\\*a\\*a\\*a\n\\*a\n"));
}

RC_GTEST_PROP(Roff, NothingCrashes, ()) {
  roff_blocks(random_markup({"\n.",     "\n",   ".TP", "SH ", "\\f",     "\\(",   "\\[",   "]",      "\\*",
                             "\\s",     "\\h'", ".de", "..",  ".if \\{", "\\}",   ".TS",   ".ds a ", ".Op Fl Fl Fl",
                             ".It Xr ", "\"",   " ",   "a",   ".nf\n",   ".EE\n", ".Bd\n", "\\"}));
}

TEST(Language, TellsTheDemoLanguagesApart) {
  EXPECT_EQ(vote_language("De kat zit op de mat en kijkt naar het raam van de buren.").language, "nl");
  EXPECT_EQ(vote_language("The cat sits on the mat and looks at the window of the house.").language, "en");
  EXPECT_EQ(vote_language("Die Katze sitzt auf der Matte und sieht das Fenster von den Nachbarn.").language, "de");
  EXPECT_EQ(
      vote_language("Kissa istuu matolla ja katsoo ikkunaa, mutta se ei ole kotona, kun voi olla ulkona.").language,
      "fi");
  EXPECT_EQ(vote_language("x = 3; y = 4").language, "");
  const std::string english = "This is how the file is read by the program that you have started with it.";
  EXPECT_FALSE(is_in_language(english, "nl"));
  EXPECT_TRUE(is_in_language(english, "en"));
  EXPECT_TRUE(is_in_language("for of with", "nl")) << "too short to say";
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
